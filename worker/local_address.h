#ifndef ITHACA_WORKER_LOCAL_ADDRESS_H_
#define ITHACA_WORKER_LOCAL_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"

namespace ithaca {

// The address of this host from which it reaches `target` ("host:port"): what
// others on the way to it can dial. Nothing is sent.
// Errors: kInvalidArgument (not HOST:PORT), kUnavailable (no such host, or no
// way there).
absl::StatusOr<std::string> LocalAddressTowards(const std::string& target);

}  // namespace ithaca

#endif  // ITHACA_WORKER_LOCAL_ADDRESS_H_
