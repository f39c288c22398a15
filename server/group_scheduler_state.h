#ifndef ITHACA_SERVER_GROUP_SCHEDULER_STATE_H_
#define ITHACA_SERVER_GROUP_SCHEDULER_STATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/sequence_parallel_plan.h"
#include "server/call_cost.h"
#include "server/fan_out.h"
#include "server/group_manager.h"
#include "server/group_scheduler.h"
#include "server/pending_call.h"

// What GroupScheduler knows of groups and of calls on them. Private to it.

namespace ithaca::server {

struct GroupScheduler::Link {
  explicit Link(const Group& group)
      : name(group.name),
        generation(group.generation),
        device(group.members.front().device),
        channels(std::make_shared<RankChannels>(group.members)) {
    for (const GroupMember& member : group.members) {
      workers.push_back(member.worker);
    }
  }

  const std::string name;
  const uint64_t generation;
  const std::string device;
  const std::shared_ptr<RankChannels> channels;
  std::vector<std::string> workers;          // by rank; set once
  std::vector<AttentionKernelKind> kernels;  // of every rank; set once

  // The rest under the scheduler's lock.
  bool proven = false;    // a probe has been right
  bool ready = false;     // and none is late
  bool draining = false;  // a member is to end: takes no call any more
  bool lost = false;      // for good
  uint64_t next_call_number = 1;
  // The calls that have this group's slots; their number is the load.
  std::vector<DispatchPtr> dispatches;
  // Streamed calls that have not had their turn.
  std::vector<std::shared_ptr<PendingCall>> bound;
  absl::Time last_answer = absl::InfinitePast();
  absl::Time probe_started = absl::InfiniteFuture();  // infinite: none is out

  double Operations() const;
  // Those of calls that are bound too.
  double OperationsAhead() const;
  // How long the last of the calls may take: ranks run them one by one.
  absl::Duration TimeLimits() const;
};

struct GroupScheduler::Dispatch {
  Dispatch(LinkPtr link, std::shared_ptr<PendingCall> call, bool is_probe,
           absl::Duration collective_timeout)
      : link(std::move(link)),
        call(std::move(call)),
        is_probe(is_probe),
        operations(AttentionOperations(this->call->shape)),
        time_limit(CallTimeLimit(this->call->shape,
                                 this->link->channels->world_size(),
                                 this->link->device, collective_timeout)) {}

  const LinkPtr link;
  const std::shared_ptr<PendingCall> call;
  const bool is_probe;
  const double operations;
  const absl::Duration time_limit;

  SequenceParallelPlan plan;
  double queue_seconds = 0;
  // Under the lock.
  std::shared_ptr<FanOut> fan_out;          // from start to end
  absl::Time due = absl::InfiniteFuture();  // of streams: the run's end
};

inline double GroupScheduler::Link::Operations() const {
  double sum = 0;
  for (const DispatchPtr& dispatch : dispatches) sum += dispatch->operations;
  return sum;
}

inline double GroupScheduler::Link::OperationsAhead() const {
  double sum = Operations();
  for (const auto& call : bound) sum += AttentionOperations(call->shape);
  return sum;
}

inline absl::Duration GroupScheduler::Link::TimeLimits() const {
  absl::Duration sum;
  for (const DispatchPtr& dispatch : dispatches) sum += dispatch->time_limit;
  return sum;
}

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_SCHEDULER_STATE_H_
