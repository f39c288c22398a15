#ifndef ITHACA_WORKER_GRPC_RENDEZVOUS_STORE_H_
#define ITHACA_WORKER_GRPC_RENDEZVOUS_STORE_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <memory>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "worker/rendezvous_store.h"

namespace ithaca {

// The coordinator's store, seen by one formation attempt. A Get ends at once,
// whatever its time limit, when the coordinator calls the attempt off or is
// gone itself.
class GrpcRendezvousStore : public RendezvousStore {
 public:
  // authorization: sent with each call; empty: none.
  GrpcRendezvousStore(std::shared_ptr<grpc::Channel> channel,
                      std::string rendezvous_id, std::string authorization);

  // Also kDeadlineExceeded: no answer within 10 s.
  absl::Status Set(std::string_view key, std::string_view value) override;
  absl::StatusOr<std::string> Get(std::string_view key,
                                  absl::Duration timeout) override;

 private:
  void Prepare(grpc::ClientContext* context, absl::Duration timeout) const;

  const std::string rendezvous_id_;
  const std::string authorization_;
  const std::unique_ptr<internal::v1::WorkerRegistry::Stub> stub_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_GRPC_RENDEZVOUS_STORE_H_
