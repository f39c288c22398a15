#ifndef ITHACA_SERVER_CALL_COST_H_
#define ITHACA_SERVER_CALL_COST_H_

#include <string_view>

#include "absl/time/time.h"
#include "core/attention_call.h"

// What a call costs a group, as far as its shape tells. Pure functions.

namespace ithaca::server {

// Multiplications and additions of both products of attention.
double AttentionOperations(const AttentionShape& shape);

// How long a call may run on its group before the group is taken for stuck:
// what ranks wait for each other, and the time for its work at a rate that no
// healthy rank of this device ("cpu", "cuda:0") falls below. A long call that
// makes progress is thus not cut off.
absl::Duration CallTimeLimit(const AttentionShape& shape, int world_size,
                             std::string_view device,
                             absl::Duration collective_timeout);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_CALL_COST_H_
