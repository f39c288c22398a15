#include "worker/grpc_status.h"

#include <string>

namespace ithaca {

grpc::Status ToGrpc(const absl::Status& status) {
  constexpr size_t kMaxMessage = 1024;
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message().substr(0, kMaxMessage)));
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

}  // namespace ithaca
