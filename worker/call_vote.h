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
// the group is lost), else the lowest failing rank's own code, kUnimplemented
// or kResourceExhausted (any other code counts as the latter): the group is
// intact.
absl::Status CountVotes(absl::Span<const CallVote> votes);

// Whether the group survived what Agree returned.
bool GroupIsIntactAfter(const absl::Status& agreed);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CALL_VOTE_H_
