#include "worker/call_refusal.h"

#include "absl/strings/cord.h"
#include "absl/types/optional.h"

namespace ithaca {
namespace {

constexpr char kPayload[] = "ithaca/call_refusal";

}  // namespace

absl::Status Refused(absl::Status status, Refusal refusal) {
  const char digit = static_cast<char>('0' + static_cast<int>(refusal));
  status.SetPayload(kPayload, absl::Cord(absl::string_view(&digit, 1)));
  return status;
}

std::optional<Refusal> RefusalOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kPayload);
  if (!payload.has_value()) return std::nullopt;
  return static_cast<Refusal>((*payload)[0] - '0');
}

bool GroupSurvives(const absl::Status& status) {
  return status.ok() || RefusalOf(status).has_value();
}

}  // namespace ithaca
