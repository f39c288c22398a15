#ifndef ITHACA_SERVER_READINESS_PROBE_H_
#define ITHACA_SERVER_READINESS_PROBE_H_

#include <memory>

#include "absl/status/status.h"
#include "server/pending_call.h"

// The attention call whose right answer is known, by which a group proves that
// it works: tiny, with heads for every rank, image and text on each path, and
// a padded text token that holds NaN. Pure functions.

namespace ithaca::server {

// A call for a group of this many ranks; it ends by on_end.
std::shared_ptr<PendingCall> MakeReadinessProbe(
    int world_size, PendingCall::EndFunction on_end);

// Whether a probe's output for this many ranks is right. Errors: kInternal,
// with the first element that is not.
absl::Status CheckReadinessProbe(int world_size, const TensorBytes& output);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_READINESS_PROBE_H_
