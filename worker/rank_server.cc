#include "worker/rank_server.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <random>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ithaca {

absl::StatusOr<RankServer> StartRankServer(const std::string& listen,
                                           grpc::Service* service) {
  RankServer started;
  // Not the process alone: containers may share a network and not their ids.
  std::random_device random;
  started.local_socket = absl::StrFormat(
      "unix-abstract:ithaca-worker-%d-%08x%08x", getpid(), random(), random());

  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(-1);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 16777215);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // As the coordinator's: nothing that could be inflated beyond its size.
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(),
                           &started.port);
  builder.AddListeningPort(started.local_socket,
                           grpc::InsecureServerCredentials());
  builder.RegisterService(service);
  started.server = builder.BuildAndStart();
  if (started.server == nullptr || started.port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", listen));
  }
  return started;
}

}  // namespace ithaca
