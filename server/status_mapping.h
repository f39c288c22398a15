#ifndef ITHACA_SERVER_STATUS_MAPPING_H_
#define ITHACA_SERVER_STATUS_MAPPING_H_

#include <grpcpp/support/status.h>

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

// The one place where absl::Status and grpc::Status meet. Pure functions.

namespace ithaca::server {

// The trailing metadata key under which a refused client finds how many
// milliseconds to wait before it tries again, as a decimal number.
inline constexpr char kRetryAfterKey[] = "ithaca-retry-after-ms";

// `status` with a hint that the same call may succeed after `delay`.
absl::Status WithRetryHint(absl::Status status, absl::Duration delay);

// kUnavailable, with the hint that about as long as a group needs to form anew
// will help.
absl::Status UnavailableForNow(absl::string_view why);

// The hint of a status, if it has one.
std::optional<absl::Duration> RetryHint(const absl::Status& status);

// Same code and message; cut to 1 KiB at a character's border and, where the
// message is not UTF-8, with '?' for what is not. The hint travels apart, as
// trailing metadata.
grpc::Status ToGrpc(const absl::Status& status);

absl::Status FromGrpc(const grpc::Status& status);

// "INVALID_ARGUMENT": the label `code` of requests_total.
std::string_view CodeName(grpc::StatusCode code);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_STATUS_MAPPING_H_
