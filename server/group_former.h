#ifndef ITHACA_SERVER_GROUP_FORMER_H_
#define ITHACA_SERVER_GROUP_FORMER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

// Which of the workers that wait make the next group. A decision and nothing
// else: no state, no I/O.

namespace ithaca::server {

using WorkerId = uint64_t;

struct FormationCandidate {
  WorkerId id = 0;  // rises with the order of joining
  std::string host;
  std::optional<int> local_slot;
  absl::Time joined_at;
  // Attempts to form a group that failed with it as a member.
  int failed_formations = 0;
};

struct FormationDecision {
  // By rank; empty if no group can be formed now.
  std::vector<WorkerId> members;
  // When a group could be formed if nobody joins or leaves until then;
  // InfiniteFuture if never.
  absl::Time wait_until = absl::InfiniteFuture();
};

// Members of one host wherever a host has enough of them; those with the
// fewest failed formations first, then those that joined first. A group over
// several hosts takes the fewest hosts, and only once `same_host_wait` has
// passed since each candidate joined. Ranks: hosts one after the other, within
// a host by local slot, then by order of joining.
// REQUIRES: group_size >= 1.
FormationDecision ChooseMembers(absl::Span<const FormationCandidate> candidates,
                                int group_size, absl::Time now,
                                absl::Duration same_host_wait);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_FORMER_H_
