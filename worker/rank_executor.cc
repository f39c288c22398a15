#include "worker/rank_executor.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/plan_policy.h"
#include "worker/call_refusal.h"
#include "worker/call_vote.h"
#include "worker/silent_communicator.h"

namespace ithaca {
namespace {

// What Run of attention ended with: its errors are votes, this rank's or
// another's, or the group's loss.
absl::Status AttentionError(const absl::Status& status) {
  return !GroupSurvives(status) && IsVoted(status.code())
             ? Refused(status, Refusal::kOwnReason)
             : status;
}

}  // namespace

RankExecutor::RankExecutor(Device* device, Communicator* communicator,
                           AttentionKernels* kernels,
                           HostBufferPool* output_buffers, RegionTable* regions)
    : device_(device),
      communicator_(communicator),
      kernels_(kernels),
      output_buffers_(output_buffers),
      regions_(regions),
      tensors_(device),
      workspace_(device),
      attention_(device, communicator, kernels, &workspace_) {}

absl::StatusOr<SequenceParallelPlan> RankExecutor::MakePlan(
    const AttentionShape& shape, const AttentionOptions& options) const {
  const int world_size = communicator_->world_size();
  return MakeSequenceParallelPlan(
      shape, options, world_size,
      PlanPolicyFor(device_->name(), shape, world_size));
}

absl::StatusOr<SequenceParallelPlan> RankExecutor::Plan(
    const RankCall& call) const {
  absl::StatusOr<SequenceParallelPlan> plan =
      MakePlan(call.shape, call.options);
  if (!plan.ok()) {
    return absl::InternalError(
        absl::StrCat("the coordinator sent a call that it should have "
                     "refused: ",
                     plan.status().message()));
  }
  if (plan->Fingerprint() != call.plan_fingerprint) {
    return absl::InternalError(
        absl::StrCat("this rank's plan differs from the coordinator's: ",
                     plan->Fingerprint(), " and ", call.plan_fingerprint));
  }
  return plan;
}

absl::Status RankExecutor::Check(const RankCall& call,
                                 const SequenceParallelPlan& plan) const {
  if (!call.refusal.ok()) return call.refusal;
  int64_t received = 0;
  for (std::string_view piece : call.tensors) {
    received += static_cast<int64_t>(piece.size());
  }
  const int64_t expected = InlineInputBytes(plan, communicator_->rank(), call);
  if (received != expected) {
    return absl::InternalError(
        absl::StrCat("tensors: expected ", expected, " bytes, got ", received));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<HostBuffer>> RankExecutor::Prepare(
    const RankCall& call, CallTensors* tensors) {
  absl::StatusOr<std::shared_ptr<HostBuffer>> output =
      output_buffers_->Take(tensors->host_output_bytes());
  if (!output.ok()) return output.status();
  if (device_->ReachesHostMemory()) tensors->StayOnHost(call, output->get());
  if (absl::Status room = tensors_.Reset(tensors->arena_bytes()); !room.ok()) {
    return room;
  }
  tensors->Place(&tensors_);
  return output;
}

absl::Status RankExecutor::Refuse(const RankCall& call,
                                  const absl::Status& why) {
  const absl::Status agreed = communicator_->Agree(
      CallVote{call.number, call.plan_fingerprint, why.code()});
  return GroupSurvives(agreed) ? Refused(why, Refusal::kOwnReason) : agreed;
}

absl::Status RankExecutor::Fail(const RankCall& call, const absl::Status& why) {
  // The vote lets the others go, who wait for it.
  const absl::Status refused = Refuse(call, why);
  return GroupSurvives(refused) ? why : refused;
}

absl::Status RankExecutor::RefuseOrFail(const RankCall& call,
                                        const absl::Status& why) {
  return IsVoted(why.code()) ? Refuse(call, why) : Fail(call, why);
}

absl::Status RankExecutor::AfterCopies(const absl::Status& refused) {
  const absl::Status synchronized = device_->Synchronize();
  return synchronized.ok() ? refused : synchronized;
}

absl::Status RankExecutor::WarmUp(const AttentionShape& shape,
                                  const AttentionOptions& options) {
  absl::StatusOr<SequenceParallelPlan> plan = MakePlan(shape, options);
  if (!plan.ok()) return plan.status();
  RankCall call;
  call.shape = shape;
  call.options = options;
  call.return_text_output = true;
  absl::StatusOr<CallTensors> tensors =
      CallTensors::Open(call, *plan, communicator_->rank(), nullptr);
  if (!tensors.ok()) return tensors.status();
  // Room for everything: what a call's own tensors stay out of depends on how
  // they come.
  if (absl::Status room = tensors_.Reset(tensors->arena_bytes()); !room.ok()) {
    return room;
  }
  tensors->Place(&tensors_);
  absl::StatusOr<std::shared_ptr<HostBuffer>> output =
      output_buffers_->Take(tensors->host_output_bytes());
  if (!output.ok()) return output.status();
  SilentCommunicator alone(communicator_->rank(), communicator_->world_size());
  UlyssesAttention attention(device_, &alone, kernels_, &workspace_);
  return attention
      .Run(*plan, call.number, tensors->inputs(), tensors->outputs())
      .status();
}

absl::StatusOr<RankResult> RankExecutor::Run(RankCall call) {
  const auto begin = std::chrono::steady_clock::now();
  absl::SleepFor(vote_delay_);

  absl::StatusOr<SequenceParallelPlan> plan = Plan(call);
  if (!plan.ok()) return Fail(call, plan.status());
  if (absl::Status checked = Check(call, *plan); !checked.ok()) {
    return Refuse(call, checked);
  }
  absl::StatusOr<CallTensors> tensors =
      CallTensors::Open(call, *plan, communicator_->rank(), regions_);
  if (!tensors.ok()) return RefuseOrFail(call, tensors.status());
  absl::StatusOr<std::shared_ptr<HostBuffer>> output = Prepare(call, &*tensors);
  if (!output.ok()) return RefuseOrFail(call, output.status());

  const DeviceMark scatter_begin = device_->Mark();
  if (absl::Status moved = tensors->Scatter(call, device_); !moved.ok()) {
    return AfterCopies(RefuseOrFail(call, moved));
  }
  const DeviceMark scatter_end = device_->Mark();
  call.tensors.clear();
  if (!call.tensors_are_pinned && !tensors->reads_message()) {
    call.tensors_owner.reset();
  }

  absl::StatusOr<RankReport> report =
      attention_.Run(*plan, call.number, tensors->inputs(), tensors->outputs());
  if (!report.ok()) {
    const absl::Status ended = AttentionError(report.status());
    return GroupSurvives(ended) ? AfterCopies(ended) : ended;
  }
  call.tensors_owner.reset();
  report->stage_seconds[static_cast<size_t>(Stage::kScatter)] +=
      device_->SecondsBetween(scatter_begin, scatter_end);

  const DeviceMark gather_begin = device_->Mark();
  absl::Status gathered = tensors->Gather(device_, output->get());
  const DeviceMark gather_end = device_->Mark();
  // Whatever became of the output: the next call wants an idle device.
  const absl::Status synchronized = device_->Synchronize();
  if (!synchronized.ok()) return synchronized;
  if (gathered.ok()) gathered = tensors->CheckRegions();
  if (!gathered.ok()) {
    // All ranks are in step: what a client did to its region costs no group.
    return IsVoted(gathered.code())
               ? Refused(gathered, Refusal::kAfterExchanges)
               : gathered;
  }
  report->stage_seconds[static_cast<size_t>(Stage::kGather)] =
      device_->SecondsBetween(gather_begin, gather_end);

  RankResult result;
  result.output = *std::move(output);
  result.output_bytes = tensors->host_output_bytes();
  result.report = *report;
  result.total_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  return result;
}

}  // namespace ithaca
