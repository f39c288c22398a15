#ifndef ITHACA_CLIENT_RETRY_AFTER_H_
#define ITHACA_CLIENT_RETRY_AFTER_H_

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ithaca::client {

// How long the server asks to wait before the call is tried again.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_RETRY_AFTER_H_
