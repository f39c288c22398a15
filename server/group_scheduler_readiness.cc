// GroupScheduler's other half: which groups are ready, and how it knows.

#include <spdlog/common.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.pb.h"
#include "server/group_scheduler.h"
#include "server/group_scheduler_state.h"
#include "server/logging.h"
#include "server/protocol_enums.h"
#include "server/readiness_probe.h"

namespace ithaca::server {

namespace {

// The kernels that every member has.
std::vector<AttentionKernelKind> CommonKernels(const Group& group) {
  std::vector<AttentionKernelKind> common;
  for (const int kernel : group.members.front().kernels) {
    const auto kind =
        FromProto(static_cast<ithaca::v1::AttentionKernel>(kernel));
    if (!kind || *kind == AttentionKernelKind::kAuto) continue;
    const bool everywhere = std::all_of(
        group.members.begin(), group.members.end(),
        [kernel](const GroupMember& member) {
          return std::find(member.kernels.begin(), member.kernels.end(),
                           kernel) != member.kernels.end();
        });
    if (everywhere) common.push_back(*kind);
  }
  return common;
}

}  // namespace

void GroupScheduler::OnGroupFormed(const Group& group) {
  metrics_->CountGroupFormation(true);
  Log(spdlog::level::info, "group formed",
      {{"group", group.name},
       {"generation", static_cast<int64_t>(group.generation)},
       {"ranks", static_cast<int64_t>(group.members.size())}});
  auto link = std::make_shared<Link>(group);
  link->kernels = CommonKernels(group);
  {
    const absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    links_.push_back(link);
  }
  StartProbe(link);
}

bool GroupScheduler::AnyReady() const {
  return std::any_of(links_.begin(), links_.end(),
                     [](const LinkPtr& link) { return link->ready; });
}

bool GroupScheduler::Ready() const {
  const absl::MutexLock lock(&mutex_);
  return !draining_ && !stopping_ && AnyReady();
}

bool GroupScheduler::Ready(std::string_view group, uint64_t generation) const {
  const absl::MutexLock lock(&mutex_);
  return std::any_of(links_.begin(), links_.end(), [&](const LinkPtr& link) {
    return link->ready && link->name == group && link->generation == generation;
  });
}

std::optional<std::vector<AttentionKernelKind>> GroupScheduler::Kernels()
    const {
  const absl::MutexLock lock(&mutex_);
  if (!AnyReady()) return std::nullopt;
  std::vector<AttentionKernelKind> kernels;
  for (const LinkPtr& link : links_) {
    if (!link->ready) continue;
    for (const AttentionKernelKind kernel : link->kernels) {
      if (std::find(kernels.begin(), kernels.end(), kernel) == kernels.end()) {
        kernels.push_back(kernel);
      }
    }
  }
  return kernels;
}

void GroupScheduler::NotifyReadiness() {
  // Asked for under this lock, so that the last word told is the true one.
  const absl::MutexLock lock(&notify_mutex_);
  const bool ready = Ready();
  if (ready == notified_ready_) return;
  notified_ready_ = ready;
  if (options_.on_ready_changed) options_.on_ready_changed(ready);
}

void GroupScheduler::StartProbe(const LinkPtr& link) {
  auto call = MakeReadinessProbe(
      link->channels->world_size(),
      [this, link](const absl::StatusOr<CallOutcome>& outcome) {
        OnProbeEnd(link, outcome);
      });
  call->queued_at = absl::Now();
  auto dispatch = std::make_shared<Dispatch>(
      link, std::move(call), /*is_probe=*/true, options_.collective_timeout);
  {
    const absl::MutexLock lock(&mutex_);
    if (link->lost) return;
    link->probe_started = absl::Now();
    link->dispatches.push_back(dispatch);
  }
  Send(dispatch);
}

void GroupScheduler::OnProbeEnd(const LinkPtr& link,
                                const absl::StatusOr<CallOutcome>& outcome) {
  const absl::Status status =
      outcome.ok()
          ? CheckReadinessProbe(link->channels->world_size(), outcome->output)
          : outcome.status();
  if (!status.ok()) {
    FailGroup(link, GroupFailureReason::kProbeFailed,
              absl::StrCat("readiness probe: ", status.message()));
    return;
  }
  bool newly_proven = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (link->lost) return;
    newly_proven = !link->proven;
    link->proven = true;
    link->ready = !link->draining;
    link->probe_started = absl::InfiniteFuture();
    link->last_answer = absl::Now();
    changed_.SignalAll();
  }
  if (newly_proven) {
    Log(spdlog::level::info, "group ready",
        {{"group", link->name},
         {"generation", static_cast<int64_t>(link->generation)}});
    manager_->MarkReady(link->name, link->generation);
  }
  NotifyReadiness();
}

std::vector<GroupScheduler::LinkPtr> GroupScheduler::LinksToProbe(
    absl::Time now, absl::Time* next, bool* suspected) {
  std::vector<LinkPtr> due;
  for (const LinkPtr& link : links_) {
    // Its first probe is out, or it needs no other.
    if (!link->proven || link->draining) continue;
    absl::Time at;
    if (link->probe_started != absl::InfiniteFuture()) {
      at = link->probe_started + options_.probe_patience;
      if (at <= now) {
        if (link->ready) {
          link->ready = false;
          *suspected = true;
          Log(spdlog::level::warn, "group does not answer its probe",
              {{"group", link->name},
               {"generation", static_cast<int64_t>(link->generation)}});
        }
        continue;  // its answer, or the probe's time limit, comes next
      }
    } else if (link->dispatches.empty()) {
      at = link->last_answer + options_.probe_interval;
      if (at <= now) {
        due.push_back(link);
        continue;
      }
    } else {
      // Its calls have time limits of their own.
      at = now + options_.probe_interval;
    }
    *next = std::min(*next, at);
  }
  return due;
}

void GroupScheduler::KeepProbing() {
  const absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    absl::Time next = absl::InfiniteFuture();
    bool suspected = false;
    const absl::Time now = absl::Now();
    const std::vector<LinkPtr> due = LinksToProbe(now, &next, &suspected);
    const std::vector<DispatchPtr> overdue = OverdueRuns(now, &next);
    if (due.empty() && overdue.empty() && !suspected) {
      changed_.WaitWithDeadline(&mutex_, next);
      continue;
    }
    mutex_.Unlock();
    if (suspected) NotifyReadiness();
    for (const LinkPtr& link : due) StartProbe(link);
    for (const DispatchPtr& dispatch : overdue) {
      FailGroup(dispatch->link, GroupFailureReason::kCallTimeout,
                absl::StrCat("the ranks of ", dispatch->link->name,
                             " did not run a call in time"));
    }
    mutex_.Lock();
  }
}

}  // namespace ithaca::server
