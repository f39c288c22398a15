#include "worker/call_vote.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/call_refusal.h"

namespace ithaca {

absl::Status CountVotes(absl::Span<const CallVote> votes) {
  for (size_t rank = 1; rank < votes.size(); ++rank) {
    if (votes[rank].call_number != votes[0].call_number) {
      return absl::InternalError(absl::StrCat(
          "ranks are at different calls: rank 0 at ", votes[0].call_number,
          ", rank ", rank, " at ", votes[rank].call_number));
    }
    if (votes[rank].plan_fingerprint != votes[0].plan_fingerprint) {
      return absl::InternalError(absl::StrCat("ranks 0 and ", rank,
                                              " hold different plans of call ",
                                              votes[0].call_number));
    }
  }
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].code == absl::StatusCode::kOk) continue;
    const absl::StatusCode code = IsVoted(votes[rank].code)
                                      ? votes[rank].code
                                      : absl::StatusCode::kResourceExhausted;
    return Refused(
        absl::Status(code,
                     absl::StrCat("rank ", rank, " cannot run the call: ",
                                  absl::StatusCodeToString(votes[rank].code))),
        Refusal::kAnotherRanksReason);
  }
  return absl::OkStatus();
}

bool IsVoted(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

}  // namespace ithaca
