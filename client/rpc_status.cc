#include "client/rpc_status.h"

#include <optional>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/retry_after.h"

namespace ithaca::client {
namespace {

constexpr char kRetryAfterMetadata[] = "ithaca-retry-after-ms";
constexpr char kRetryAfterPayload[] = "ithaca.v1/retry-after-ms";

}  // namespace

absl::Status ToAbslStatus(const grpc::Status& status,
                          const grpc::ClientContext& context) {
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
  if (result.ok()) return result;
  const auto& trailing = context.GetServerTrailingMetadata();
  if (const auto hint = trailing.find(kRetryAfterMetadata);
      hint != trailing.end()) {
    result.SetPayload(kRetryAfterPayload,
                      absl::Cord(absl::string_view(hint->second.data(),
                                                   hint->second.size())));
  }
  return result;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryAfterPayload);
  int64_t milliseconds = 0;
  if (!payload.has_value() ||
      !absl::SimpleAtoi(std::string(*payload), &milliseconds) ||
      milliseconds < 0) {
    return std::nullopt;
  }
  return absl::Milliseconds(milliseconds);
}

}  // namespace ithaca::client
