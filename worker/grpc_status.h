#ifndef ITHACA_WORKER_GRPC_STATUS_H_
#define ITHACA_WORKER_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

// Between absl's and gRPC's statuses, whose codes have the same numbers.

namespace ithaca {

// The message is cut where it would not fit in trailing metadata.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

}  // namespace ithaca

#endif  // ITHACA_WORKER_GRPC_STATUS_H_
