#ifndef ITHACA_CLIENT_CALL_CONTEXT_H_
#define ITHACA_CLIENT_CALL_CONTEXT_H_

#include <grpcpp/client_context.h>

#include <string>

#include "absl/time/time.h"
#include "client/plane.h"

// What every call sends and gets beside its messages.

namespace ithaca::client {

// Deadline (none if infinite) and token of one call.
void PrepareContext(const std::string& token, absl::Time deadline,
                    grpc::ClientContext* context);

// Names the lease of the regions that a call uses.
void AddLease(const std::string& lease, grpc::ClientContext* context);

// The plane that the server says a call took; `otherwise` if it says none.
// REQUIRES: the call of `context` has ended.
Plane PlaneOf(const grpc::ClientContext& context, Plane otherwise);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CALL_CONTEXT_H_
