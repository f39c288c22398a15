#include "server/group_scheduler.h"

#include <grpcpp/support/status.h>
#include <spdlog/common.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/plan_policy.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/v1/attention.pb.h"
#include "server/call_cost.h"
#include "server/fan_out.h"
#include "server/gather.h"
#include "server/group_scheduler_state.h"
#include "server/logging.h"
#include "server/rank_message.h"
#include "server/rank_refusal.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

// About what a group needs to form anew.
constexpr absl::Duration kRetryAfterLoss = absl::Seconds(1);
// What a rank's memory may need to become free.
constexpr absl::Duration kRetryAfterRefusal = absl::Milliseconds(500);

absl::Status Unavailable(const std::string& why) {
  return WithRetryHint(absl::UnavailableError(why), kRetryAfterLoss);
}

}  // namespace

GroupScheduler::GroupScheduler(GroupManager* manager, AdmissionQueue* queue,
                               Metrics* metrics, Options options)
    : manager_(manager),
      queue_(queue),
      metrics_(metrics),
      options_(std::move(options)),
      prober_([this] { KeepProbing(); }) {}

GroupScheduler::~GroupScheduler() { Stop(); }

void GroupScheduler::Submit(const std::shared_ptr<PendingCall>& call) {
  bool draining = false;
  bool ready = false;
  {
    const absl::MutexLock lock(&mutex_);
    draining = draining_ || stopping_;
    ready = AnyReady();
  }
  if (draining || !ready) {
    call->Finish(Unavailable(draining ? "the server is draining"
                                      : "no group of workers is ready"));
    return;
  }
  call->queued_at = absl::Now();
  if (auto status = queue_->Push(call); !status.ok()) {
    call->Finish(status);
    return;
  }
  DispatchQueued();
  // The last group may have gone since it was asked for above.
  EndQueuedIfNoGroup();
}

void GroupScheduler::Cancel(const std::shared_ptr<PendingCall>& call,
                            const absl::Status& status) {
  if (queue_->Remove(*call)) {
    call->Finish(status);
  } else {
    call->Abandon(status);
  }
}

void GroupScheduler::Drain() {
  {
    const absl::MutexLock lock(&mutex_);
    draining_ = true;
  }
  NotifyReadiness();
}

void GroupScheduler::Stop() {
  std::vector<LinkPtr> links;
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    links = links_;
    changed_.SignalAll();
  }
  if (prober_.joinable()) prober_.join();
  for (const LinkPtr& link : links) LoseGroup(link, "the server is stopping");
  EndQueuedIfNoGroup();
  const absl::MutexLock lock(&mutex_);
  while (running_fan_outs_ > 0) changed_.Wait(&mutex_);
}

// ------------------------------------------------------------------ dispatch

GroupScheduler::LinkPtr GroupScheduler::LinkWithFreeSlot() const {
  LinkPtr best;
  for (const LinkPtr& link : links_) {
    if (link->ready &&
        static_cast<int>(link->dispatches.size()) < options_.calls_in_flight &&
        (best == nullptr || link->Operations() < best->Operations())) {
      best = link;
    }
  }
  return best;
}

void GroupScheduler::DispatchQueued() {
  for (;;) {
    DispatchPtr dispatch;
    {
      const absl::MutexLock lock(&mutex_);
      LinkPtr link = LinkWithFreeSlot();
      if (link == nullptr) return;
      std::shared_ptr<PendingCall> call = queue_->Pop();
      if (call == nullptr) return;
      dispatch = std::make_shared<Dispatch>(link, std::move(call),
                                            /*is_probe=*/false,
                                            options_.collective_timeout);
      link->dispatches.push_back(dispatch);
    }
    Send(dispatch);
  }
}

void GroupScheduler::Send(const DispatchPtr& dispatch) {
  PendingCall& call = *dispatch->call;
  const LinkPtr& link = dispatch->link;
  const absl::Time now = absl::Now();
  if (call.ended() || call.deadline <= now) {
    if (Claim(dispatch)) {
      call.Finish(absl::DeadlineExceededError(
          "the deadline passed before the call reached a group"));
    }
    return;
  }
  const int world_size = link->channels->world_size();
  auto plan = MakeSequenceParallelPlan(
      call.shape, call.options, world_size,
      PlanPolicyFor(link->device, call.shape, world_size));
  if (!plan.ok()) {
    if (Claim(dispatch)) {
      call.Finish(absl::InternalError(absl::StrCat(
          "a checked call has no plan: ", plan.status().message())));
    }
    return;
  }
  dispatch->plan = *std::move(plan);
  dispatch->queue_seconds =
      std::max(0.0, absl::ToDoubleSeconds(now - call.queued_at));

  uint64_t number = 0;
  absl::Duration limit;
  {
    const absl::MutexLock lock(&mutex_);
    if (link->lost) return;  // and the call was taken from it
    number = link->next_call_number++;
    limit = link->TimeLimits();
  }
  auto fan_out = std::make_shared<FanOut>(
      link->channels,
      MakeRankRequests(dispatch->plan,
                       DescribeCall(dispatch->plan, call.regions,
                                    call.request_id, link->generation, number),
                       call.tensors),
      now + limit,
      FanOut::Callbacks{[this, dispatch](int rank, const grpc::Status& status) {
                          OnRankFailure(dispatch, rank, FromGrpc(status));
                        },
                        [this, dispatch] { OnRanksDone(dispatch); }});
  {
    const absl::MutexLock lock(&mutex_);
    if (link->lost) return;
    dispatch->fan_out = fan_out;
    ++running_fan_outs_;
  }
  fan_out->Start();
}

bool GroupScheduler::Claim(const DispatchPtr& dispatch) {
  const absl::MutexLock lock(&mutex_);
  auto& dispatches = dispatch->link->dispatches;
  const auto found = std::find(dispatches.begin(), dispatches.end(), dispatch);
  if (found == dispatches.end()) return false;
  dispatches.erase(found);
  return true;
}

void GroupScheduler::OnRankFailure(const DispatchPtr& dispatch, int rank,
                                   const absl::Status& status) {
  GroupFailureReason reason = GroupFailureReason::kCollectiveFailed;
  if (dispatch->is_probe) {
    reason = GroupFailureReason::kProbeFailed;
  } else if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    reason = GroupFailureReason::kCallTimeout;
  }
  FailGroup(dispatch->link, reason,
            absl::StrCat("rank ", rank, " of ", dispatch->link->name, ": ",
                         absl::StatusCodeToString(status.code()), ": ",
                         status.message()));
}

void GroupScheduler::OnRanksDone(const DispatchPtr& dispatch) {
  // Not claimed: the group was lost and its calls were taken care of.
  if (Claim(dispatch)) EndAnswered(dispatch);
  DispatchQueued();
  const absl::MutexLock lock(&mutex_);
  dispatch->fan_out = nullptr;
  if (--running_fan_outs_ == 0) changed_.SignalAll();
}

void GroupScheduler::EndAnswered(const DispatchPtr& dispatch) {
  const FanOut& fan_out = *dispatch->fan_out;
  const LinkPtr& link = dispatch->link;
  PendingCall& call = *dispatch->call;
  std::vector<grpc::Status> answers;
  for (int rank = 0; rank < link->channels->world_size(); ++rank) {
    answers.push_back(fan_out.status(rank));
  }
  const RankVerdict verdict = JudgeAnswers(answers, link->workers);
  if (verdict.kind == RankVerdict::Kind::kAnswered) {
    auto outcome =
        Gather(dispatch->plan, link->name, link->generation,
               dispatch->queue_seconds, call.regions.output_place(), fan_out);
    if (outcome.ok()) {
      {
        const absl::MutexLock lock(&mutex_);
        link->last_answer = absl::Now();
      }
      call.Finish(std::move(outcome));
      return;
    }
    call.Finish(outcome.status());
    FailGroup(link, GroupFailureReason::kCollectiveFailed,
              std::string(outcome.status().message()));
    return;
  }
  const absl::Status& refusal = verdict.refusal;
  if (verdict.kind == RankVerdict::Kind::kRefused) {
    call.Finish(refusal.code() == absl::StatusCode::kResourceExhausted
                    ? WithRetryHint(refusal, kRetryAfterRefusal)
                    : refusal);
    return;
  }
  const std::string message =
      absl::StrCat("the ranks of ", link->name,
                   " disagree whether a call can run: ", refusal.message());
  call.Finish(Unavailable(message));
  FailGroup(link, GroupFailureReason::kCollectiveFailed, message);
}

// ---------------------------------------------------------------------- loss

void GroupScheduler::FailGroup(const LinkPtr& link, GroupFailureReason reason,
                               const std::string& message) {
  if (LoseGroup(link, message)) {
    manager_->ReportFailure(link->name, link->generation, reason, message);
  }
}

bool GroupScheduler::LoseGroup(const LinkPtr& link,
                               const std::string& message) {
  std::vector<DispatchPtr> dispatches;
  // Taken under the lock: a fan-out that ends meanwhile leaves its dispatch.
  std::vector<std::shared_ptr<FanOut>> fan_outs;
  {
    const absl::MutexLock lock(&mutex_);
    if (link->lost) return false;
    link->lost = true;
    link->ready = false;
    dispatches.swap(link->dispatches);
    for (const DispatchPtr& dispatch : dispatches) {
      if (dispatch->fan_out != nullptr) fan_outs.push_back(dispatch->fan_out);
    }
    links_.erase(std::find(links_.begin(), links_.end(), link));
  }
  NotifyReadiness();
  for (const auto& fan_out : fan_outs) fan_out->Cancel();
  const absl::Status status =
      Unavailable(absl::StrCat("the call's group was lost: ", message));
  for (const DispatchPtr& dispatch : dispatches) {
    if (dispatch->is_probe) {
      dispatch->call->Finish(status);
    } else {
      RetryOrEnd(dispatch->call, status);
    }
  }
  DispatchQueued();
  EndQueuedIfNoGroup();
  return true;
}

void GroupScheduler::RetryOrEnd(const std::shared_ptr<PendingCall>& call,
                                const absl::Status& status) {
  bool possible = !call->retried && !call->ended();
  {
    const absl::MutexLock lock(&mutex_);
    possible = possible && !stopping_ && AnyReady();
  }
  if (!possible) {
    call->Finish(status);
    return;
  }
  call->retried = true;
  metrics_->CountRetry();
  Log(spdlog::level::warn, "call is retried on another group",
      {{"request_id", call->request_id}});
  queue_->PushFront(call);
}

void GroupScheduler::EndQueuedIfNoGroup() {
  {
    const absl::MutexLock lock(&mutex_);
    for (const LinkPtr& link : links_) {
      if (link->proven && !stopping_) return;
    }
  }
  for (const auto& call : queue_->TakeAll()) {
    call->Finish(Unavailable("no group of workers is ready"));
  }
}

void GroupScheduler::OnGroupLost(std::string_view name, uint64_t generation,
                                 GroupFailureReason reason,
                                 std::string_view message) {
  metrics_->CountGroupFailure(reason);
  Log(spdlog::level::warn, "group lost",
      {{"group", name},
       {"generation", static_cast<int64_t>(generation)},
       {"reason", Name(reason)},
       {"error", message}});
  LinkPtr lost;
  {
    const absl::MutexLock lock(&mutex_);
    for (const LinkPtr& link : links_) {
      if (link->name == name && link->generation == generation) lost = link;
    }
  }
  if (lost != nullptr) LoseGroup(lost, std::string(message));
}

}  // namespace ithaca::server
