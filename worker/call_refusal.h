#ifndef ITHACA_WORKER_CALL_REFUSAL_H_
#define ITHACA_WORKER_CALL_REFUSAL_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"

// Errors of a call that leave its group intact. Such a status is marked as one,
// whatever its code; an error without a mark loses the group. The mark is a
// payload of the status: it lasts as long as the status is passed on whole.

namespace ithaca {

enum class Refusal : uint8_t {
  // Voted before the first exchange, so that no rank began: for what this rank
  // lacks, or for another rank's sake.
  kOwnReason,
  kAnotherRanksReason,
  // This rank alone, once all exchanges were done: its output could not be
  // handed back.
  kAfterExchanges,
};

// The status, marked; a mark it has already is replaced. REQUIRES: !status.ok()
absl::Status Refused(absl::Status status, Refusal refusal);

// nullopt: OK, or the group is lost.
std::optional<Refusal> RefusalOf(const absl::Status& status);

// Whether the group lives on after a call that ended so.
bool GroupSurvives(const absl::Status& status);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CALL_REFUSAL_H_
