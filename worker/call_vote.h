#ifndef ITHACA_WORKER_CALL_VOTE_H_
#define ITHACA_WORKER_CALL_VOTE_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/communicator.h"

namespace ithaca {

// What the votes of all ranks, by rank, come to; every rank that counts the
// same votes gets the same answer.
//
// Errors: kInternal (call number or plan of some rank differ from rank 0's:
// the group is lost), else the lowest failing rank's own code where IsVoted
// allows it, kResourceExhausted where not; it is marked as another rank's
// refusal, and the group is intact.
absl::Status CountVotes(absl::Span<const CallVote> votes);

// Whether a vote against a call may say so: kResourceExhausted and
// kUnimplemented, and of a client's region kNotFound, kInvalidArgument and
// kFailedPrecondition.
bool IsVoted(absl::StatusCode code);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CALL_VOTE_H_
