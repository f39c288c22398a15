#ifndef ITHACA_CLIENT_RPC_STATUS_H_
#define ITHACA_CLIENT_RPC_STATUS_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include "absl/status/status.h"

// The border where gRPC's status becomes absl's.

namespace ithaca::client {

// The same code and message. A server's retry hint (trailing metadata
// "ithaca-retry-after-ms") is kept for RetryAfter. REQUIRES: the call of
// `context` has ended.
absl::Status ToAbslStatus(const grpc::Status& status,
                          const grpc::ClientContext& context);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_RPC_STATUS_H_
