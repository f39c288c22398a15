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
#include "server/rank_streams.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

// What a rank's memory may need to become free.
constexpr absl::Duration kRetryAfterRefusal = absl::Milliseconds(500);

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
  if (call->bound()) {
    SubmitBound(call);
    return;
  }
  bool draining = false;
  bool ready = false;
  {
    const absl::MutexLock lock(&mutex_);
    draining = draining_ || stopping_;
    ready = AnyReady();
  }
  if (draining || !ready) {
    call->Finish(UnavailableForNow(draining ? "the server is draining"
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
  bool waiting = false;
  {
    // Under the lock, so that its turn does not come meanwhile.
    const absl::MutexLock lock(&mutex_);
    waiting = queue_->Remove(*call);
    waiting = Unbind(*call) || waiting;
  }
  if (waiting) {
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

GroupScheduler::DispatchPtr GroupScheduler::NextDispatch() {
  std::vector<LinkPtr> free;
  for (const LinkPtr& link : links_) {
    if (link->ready &&
        static_cast<int>(link->dispatches.size()) < options_.calls_in_flight) {
      free.push_back(link);
    }
  }
  std::stable_sort(free.begin(), free.end(),
                   [](const LinkPtr& a, const LinkPtr& b) {
                     return a->Operations() < b->Operations();
                   });
  for (const LinkPtr& link : free) {
    std::shared_ptr<PendingCall> call =
        queue_->Pop(link->name, link->generation);
    if (call == nullptr) continue;  // what waits is bound to others
    Unbind(*call);
    auto dispatch = std::make_shared<Dispatch>(link, std::move(call),
                                               /*is_probe=*/false,
                                               options_.collective_timeout);
    link->dispatches.push_back(dispatch);
    return dispatch;
  }
  return nullptr;
}

void GroupScheduler::DispatchQueued() {
  for (;;) {
    ReleaseDrained();
    DispatchPtr dispatch;
    {
      const absl::MutexLock lock(&mutex_);
      dispatch = NextDispatch();
    }
    if (dispatch == nullptr) return;
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

  if (call.streams != nullptr) {
    RunStreams(dispatch, now);
    return;
  }
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

grpc::Status GroupScheduler::StatusOf(const Dispatch& dispatch,
                                      int rank) const {
  return dispatch.call->streams != nullptr
             ? dispatch.call->streams->status(rank)
             : dispatch.fan_out->status(rank);
}

absl::StatusOr<CallOutcome> GroupScheduler::Outcome(
    const Dispatch& dispatch) const {
  const Link& link = *dispatch.link;
  PendingCall& call = *dispatch.call;
  if (call.streams == nullptr) {
    return Gather(dispatch.plan, link.name, link.generation,
                  dispatch.queue_seconds, call.regions.output_place(),
                  *dispatch.fan_out);
  }
  const int world_size = link.channels->world_size();
  std::vector<const internal::v1::RankExecution*> executions;
  executions.reserve(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    executions.push_back(&call.streams->execution(rank));
  }
  auto outcome = GatherExecutions(dispatch.plan, link.name, link.generation,
                                  dispatch.queue_seconds, executions);
  if (outcome.ok()) outcome->reservation = std::move(call.reservation);
  return outcome;
}

void GroupScheduler::EndAnswered(const DispatchPtr& dispatch) {
  const LinkPtr& link = dispatch->link;
  PendingCall& call = *dispatch->call;
  const int world_size = link->channels->world_size();
  std::vector<grpc::Status> answers;
  answers.reserve(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    answers.push_back(StatusOf(*dispatch, rank));
  }
  const RankVerdict verdict = JudgeAnswers(answers, link->workers);
  if (verdict.kind == RankVerdict::Kind::kAnswered) {
    auto outcome = Outcome(*dispatch);
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
  call.Finish(UnavailableForNow(message));
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
  std::vector<std::shared_ptr<PendingCall>> bound;
  {
    const absl::MutexLock lock(&mutex_);
    if (link->lost) return false;
    link->lost = true;
    link->ready = false;
    dispatches.swap(link->dispatches);
    bound.swap(link->bound);
    for (const auto& call : bound) queue_->Remove(*call);
    for (const DispatchPtr& dispatch : dispatches) {
      if (dispatch->fan_out != nullptr) fan_outs.push_back(dispatch->fan_out);
    }
    links_.erase(std::find(links_.begin(), links_.end(), link));
  }
  NotifyReadiness();
  for (const auto& fan_out : fan_outs) fan_out->Cancel();
  for (const DispatchPtr& dispatch : dispatches) {
    if (dispatch->call->streams != nullptr) dispatch->call->streams->Cancel();
  }
  const absl::Status status =
      UnavailableForNow(absl::StrCat("the call's group was lost: ", message));
  for (const DispatchPtr& dispatch : dispatches) {
    if (dispatch->is_probe) {
      dispatch->call->Finish(status);
    } else {
      RetryOrEnd(dispatch->call, status);
    }
  }
  for (const auto& call : bound) call->Finish(status);
  DispatchQueued();
  EndQueuedIfNoGroup();
  return true;
}

void GroupScheduler::ReleaseDrained() {
  for (;;) {
    LinkPtr drained;
    {
      const absl::MutexLock lock(&mutex_);
      const auto found =
          std::find_if(links_.begin(), links_.end(), [](const LinkPtr& link) {
            return link->draining && link->dispatches.empty();
          });
      if (found == links_.end()) return;
      drained = *found;
      drained->lost = true;
      links_.erase(found);
    }
    Log(spdlog::level::info, "group released",
        {{"group", drained->name},
         {"generation", static_cast<int64_t>(drained->generation)}});
    manager_->Release(drained->name, drained->generation);
    EndQueuedIfNoGroup();
  }
}

void GroupScheduler::RetryOrEnd(const std::shared_ptr<PendingCall>& call,
                                const absl::Status& status) {
  bool possible = !call->bound() && !call->retried && !call->ended();
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
    call->Finish(UnavailableForNow("no group of workers is ready"));
  }
}

GroupScheduler::LinkPtr GroupScheduler::FindLink(std::string_view name,
                                                 uint64_t generation) const {
  for (const LinkPtr& link : links_) {
    if (link->name == name && link->generation == generation) return link;
  }
  return nullptr;
}

void GroupScheduler::OnGroupDraining(std::string_view name,
                                     uint64_t generation) {
  {
    const absl::MutexLock lock(&mutex_);
    const LinkPtr link = FindLink(name, generation);
    if (link == nullptr) return;
    link->draining = true;
    link->ready = false;
  }
  Log(spdlog::level::info, "group drains",
      {{"group", name}, {"generation", static_cast<int64_t>(generation)}});
  NotifyReadiness();
  ReleaseDrained();
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
    lost = FindLink(name, generation);
  }
  if (lost != nullptr) LoseGroup(lost, std::string(message));
}

}  // namespace ithaca::server
