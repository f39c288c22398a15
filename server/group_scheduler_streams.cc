// GroupScheduler's third part: calls whose inputs go to a group before their
// turn comes.

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/group_scheduler.h"
#include "server/group_scheduler_state.h"
#include "server/rank_streams.h"
#include "server/status_mapping.h"

namespace ithaca::server {

absl::StatusOr<GroupScheduler::Placement> GroupScheduler::Bind(
    const std::shared_ptr<PendingCall>& call) {
  const absl::MutexLock lock(&mutex_);
  if (draining_ || stopping_) {
    return UnavailableForNow("the server is draining");
  }
  LinkPtr best;
  size_t bound = 0;
  for (const LinkPtr& link : links_) {
    bound += link->bound.size();
    if (link->ready && (best == nullptr ||
                        link->OperationsAhead() < best->OperationsAhead())) {
      best = link;
    }
  }
  if (best == nullptr) return UnavailableForNow("no group of workers is ready");
  const int64_t most = queue_->max_queued_requests();
  if (static_cast<int64_t>(bound) >= most || queue_->size() >= most) {
    return queue_->Full();
  }
  call->group = best->name;
  call->generation = best->generation;
  best->bound.push_back(call);
  return Placement{best->channels, best->name, best->generation, best->device};
}

bool GroupScheduler::Unbind(const PendingCall& call) {
  if (!call.bound()) return false;
  for (const LinkPtr& link : links_) {
    const auto found = std::find_if(
        link->bound.begin(), link->bound.end(),
        [&call](const auto& bound) { return bound.get() == &call; });
    if (found == link->bound.end()) continue;
    link->bound.erase(found);
    return true;
  }
  return false;
}

void GroupScheduler::SubmitBound(const std::shared_ptr<PendingCall>& call) {
  {
    const absl::MutexLock lock(&mutex_);
    const bool waits =
        std::any_of(links_.begin(), links_.end(), [&call](const LinkPtr& link) {
          return std::find(link->bound.begin(), link->bound.end(), call) !=
                 link->bound.end();
        });
    if (!waits) return;  // it was cancelled, or ended with its group
    call->queued_at = absl::Now();
    queue_->Push(call).IgnoreError();  // which it never refuses
  }
  DispatchQueued();
}

void GroupScheduler::RunStreams(const DispatchPtr& dispatch, absl::Time now) {
  PendingCall& call = *dispatch->call;
  const LinkPtr& link = dispatch->link;
  if (!call.streams->Claim()) {
    // Whoever ended the streams ends the call too, and knows better why.
    if (Claim(dispatch)) {
      call.Finish(UnavailableForNow("a rank of the call's group is gone"));
    }
    return;
  }
  uint64_t number = 0;
  {
    const absl::MutexLock lock(&mutex_);
    if (link->lost) {
      // And the call was taken from it.
      call.streams->Cancel();
      return;
    }
    number = link->next_call_number++;
    dispatch->due = now + link->TimeLimits();
    ++running_fan_outs_;
    changed_.SignalAll();
  }
  call.streams->Run(number,
                    {[this, dispatch](int rank, const grpc::Status& status) {
                       OnRankFailure(dispatch, rank, FromGrpc(status));
                     },
                     [this, dispatch] { OnRanksDone(dispatch); }});
}

std::vector<GroupScheduler::DispatchPtr> GroupScheduler::OverdueRuns(
    absl::Time now, absl::Time* next) {
  std::vector<DispatchPtr> overdue;
  for (const LinkPtr& link : links_) {
    for (const DispatchPtr& dispatch : link->dispatches) {
      if (dispatch->due <= now) {
        overdue.push_back(dispatch);
      } else {
        *next = std::min(*next, dispatch->due);
      }
    }
  }
  return overdue;
}

}  // namespace ithaca::server
