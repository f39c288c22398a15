#ifndef ITHACA_WORKER_RANK_SERVER_H_
#define ITHACA_WORKER_RANK_SERVER_H_

#include <grpcpp/server.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ithaca {

// Where a worker's RankService is served.
struct RankServer {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
  // "unix-abstract:NAME", for callers in this network name space. Whoever may
  // open it may open the port of a loopback address as well.
  std::string local_socket;
};

// Serves `service` at `listen` ("host:port", port 0: any) and at a socket with
// a name of its own. Messages have no limit: the coordinator has judged them.
// Errors: kUnavailable (cannot listen there).
absl::StatusOr<RankServer> StartRankServer(const std::string& listen,
                                           grpc::Service* service);

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_SERVER_H_
