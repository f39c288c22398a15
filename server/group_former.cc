#include "server/group_former.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace ithaca::server {
namespace {

using Candidates = std::vector<const FormationCandidate*>;

bool Better(const FormationCandidate* a, const FormationCandidate* b) {
  return std::tie(a->failed_formations, a->id) <
         std::tie(b->failed_formations, b->id);
}

bool RankBefore(const FormationCandidate* a, const FormationCandidate* b) {
  constexpr int kNoSlot = std::numeric_limits<int>::max();
  return std::pair(a->local_slot.value_or(kNoSlot), a->id) <
         std::pair(b->local_slot.value_or(kNoSlot), b->id);
}

// The best `count` candidates of one host, in rank order.
Candidates BestOf(Candidates host, size_t count) {
  std::sort(host.begin(), host.end(), Better);
  if (host.size() > count) host.resize(count);
  std::sort(host.begin(), host.end(), RankBefore);
  return host;
}

// What makes one host's members preferable to another's: smaller is better.
std::pair<int, WorkerId> Cost(const Candidates& members) {
  int failures = 0;
  WorkerId first = std::numeric_limits<WorkerId>::max();
  for (const FormationCandidate* member : members) {
    failures += member->failed_formations;
    first = std::min(first, member->id);
  }
  return {failures, first};
}

}  // namespace

FormationDecision ChooseMembers(absl::Span<const FormationCandidate> candidates,
                                int group_size, absl::Time now,
                                absl::Duration same_host_wait) {
  FormationDecision decision;
  const size_t size = static_cast<size_t>(group_size);
  if (candidates.size() < size) return decision;

  std::map<std::string, Candidates> by_host;
  absl::Time settled = absl::InfinitePast();
  for (const FormationCandidate& candidate : candidates) {
    by_host[candidate.host].push_back(&candidate);
    settled = std::max(settled, candidate.joined_at + same_host_wait);
  }

  Candidates chosen;
  for (const auto& [host, members] : by_host) {
    if (members.size() < size) continue;
    Candidates best = BestOf(members, size);
    if (chosen.empty() || Cost(best) < Cost(chosen)) chosen = std::move(best);
  }

  if (chosen.empty()) {
    if (now < settled) {
      decision.wait_until = settled;
      return decision;
    }
    std::vector<Candidates> hosts;
    hosts.reserve(by_host.size());
    for (auto& [host, members] : by_host) hosts.push_back(members);
    std::sort(hosts.begin(), hosts.end(),
              [](const Candidates& a, const Candidates& b) {
                if (a.size() != b.size()) return a.size() > b.size();
                return Cost(a) < Cost(b);
              });
    for (const Candidates& host : hosts) {
      for (const FormationCandidate* member :
           BestOf(host, size - chosen.size())) {
        chosen.push_back(member);
      }
      if (chosen.size() == size) break;
    }
  }

  for (const FormationCandidate* member : chosen) {
    decision.members.push_back(member->id);
  }
  return decision;
}

}  // namespace ithaca::server
