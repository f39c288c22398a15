#include "worker/rank_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/plan_policy.h"
#include "worker/call_refusal.h"
#include "worker/call_vote.h"
#include "worker/rank_tensors.h"
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
                           HostBufferPool* output_buffers)
    : device_(device),
      communicator_(communicator),
      kernels_(kernels),
      output_buffers_(output_buffers),
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
  const int64_t expected = BytesOfRank(plan, communicator_->rank()).inputs();
  if (received != expected) {
    return absl::InternalError(
        absl::StrCat("tensors: expected ", expected, " bytes, got ", received));
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::Prepare(const RankCall& call,
                                   const SequenceParallelPlan& plan,
                                   RankInputs* inputs, RankOutputs* outputs,
                                   std::shared_ptr<HostBuffer>* result) {
  const RankTensorBytes sizes = BytesOfRank(plan, communicator_->rank());
  absl::StatusOr<std::shared_ptr<HostBuffer>> buffer = output_buffers_->Take(
      sizes.image_query + (call.return_text_output ? sizes.text_query : 0));
  if (!buffer.ok()) return buffer.status();
  *result = *std::move(buffer);

  absl::Status room =
      tensors_.Reset(2 * (Arena::AlignedSize(sizes.image_query) +
                          Arena::AlignedSize(sizes.image_key) +
                          Arena::AlignedSize(sizes.text_query) +
                          Arena::AlignedSize(sizes.text_key)));
  if (!room.ok()) return room;
  inputs->image_query = tensors_.Take(sizes.image_query);
  inputs->image_key = tensors_.Take(sizes.image_key);
  inputs->image_value = tensors_.Take(sizes.image_key);
  inputs->text_query = tensors_.Take(sizes.text_query);
  inputs->text_key = tensors_.Take(sizes.text_key);
  inputs->text_value = tensors_.Take(sizes.text_key);
  outputs->image = tensors_.Take(sizes.image_query);
  outputs->text = tensors_.Take(sizes.text_query);
  return absl::OkStatus();
}

absl::Status RankExecutor::Scatter(const RankCall& call,
                                   const SequenceParallelPlan& plan,
                                   const RankInputs& inputs) {
  const RankTensorBytes sizes = BytesOfRank(plan, communicator_->rank());
  const std::array<std::pair<const void*, int64_t>, 6> tensors = {{
      {inputs.image_query, sizes.image_query},
      {inputs.image_key, sizes.image_key},
      {inputs.image_value, sizes.image_key},
      {inputs.text_query, sizes.text_query},
      {inputs.text_key, sizes.text_key},
      {inputs.text_value, sizes.text_key},
  }};
  size_t next = 0;
  std::string_view piece;
  for (const auto& [memory, bytes] : tensors) {
    char* to = static_cast<char*>(const_cast<void*>(memory));
    int64_t missing = bytes;
    while (missing > 0) {
      while (piece.empty()) piece = call.tensors[next++];
      const int64_t count =
          std::min(missing, static_cast<int64_t>(piece.size()));
      if (absl::Status status = device_->CopyFromHost(to, piece.data(), count);
          !status.ok()) {
        return status;
      }
      to += count;
      missing -= count;
      piece.remove_prefix(static_cast<size_t>(count));
    }
  }
  return absl::OkStatus();
}

absl::Status RankExecutor::Gather(const SequenceParallelPlan& plan,
                                  bool with_text, const RankOutputs& outputs,
                                  HostBuffer* result) {
  const RankTensorBytes sizes = BytesOfRank(plan, communicator_->rank());
  absl::Status status =
      device_->CopyToHost(result->data(), outputs.image, sizes.image_query);
  if (status.ok() && with_text) {
    status = device_->CopyToHost(result->data() + sizes.image_query,
                                 outputs.text, sizes.text_query);
  }
  return status;
}

absl::Status RankExecutor::Refuse(const RankCall& call,
                                  const absl::Status& why) {
  const absl::Status agreed = communicator_->Agree(
      CallVote{call.number, call.plan_fingerprint, why.code()});
  return GroupSurvives(agreed) ? Refused(why, Refusal::kOwnReason) : agreed;
}

absl::Status RankExecutor::WarmUp(const AttentionShape& shape,
                                  const AttentionOptions& options) {
  absl::StatusOr<SequenceParallelPlan> plan = MakePlan(shape, options);
  if (!plan.ok()) return plan.status();
  RankCall call;
  call.shape = shape;
  call.options = options;
  call.return_text_output = true;
  RankInputs inputs;
  RankOutputs outputs;
  std::shared_ptr<HostBuffer> output;
  if (absl::Status ready = Prepare(call, *plan, &inputs, &outputs, &output);
      !ready.ok()) {
    return ready;
  }
  SilentCommunicator alone(communicator_->rank(), communicator_->world_size());
  UlyssesAttention attention(device_, &alone, kernels_, &workspace_);
  return attention.Run(*plan, call.number, inputs, outputs).status();
}

absl::StatusOr<RankResult> RankExecutor::Run(RankCall call) {
  const auto begin = std::chrono::steady_clock::now();
  absl::SleepFor(vote_delay_);

  absl::StatusOr<SequenceParallelPlan> plan = Plan(call);
  if (!plan.ok()) {
    // Nobody could say what else differs. The vote lets the others go.
    const absl::Status refused = Refuse(call, plan.status());
    return GroupSurvives(refused) ? plan.status() : refused;
  }
  if (absl::Status checked = Check(call, *plan); !checked.ok()) {
    return Refuse(call, checked);
  }
  RankInputs inputs;
  RankOutputs outputs;
  std::shared_ptr<HostBuffer> output;
  if (absl::Status ready = Prepare(call, *plan, &inputs, &outputs, &output);
      !ready.ok()) {
    return Refuse(call, ready);
  }

  const DeviceMark scatter_begin = device_->Mark();
  if (absl::Status moved = Scatter(call, *plan, inputs); !moved.ok()) {
    return Refuse(call, moved);
  }
  const DeviceMark scatter_end = device_->Mark();
  call.tensors.clear();
  call.tensors_owner.reset();

  absl::StatusOr<RankReport> report =
      attention_.Run(*plan, call.number, inputs, outputs);
  if (!report.ok()) return AttentionError(report.status());
  report->stage_seconds[static_cast<size_t>(Stage::kScatter)] +=
      device_->SecondsBetween(scatter_begin, scatter_end);

  const bool with_text =
      call.return_text_output && plan->shape.text_query_tokens() > 0;
  const DeviceMark gather_begin = device_->Mark();
  absl::Status gathered = Gather(*plan, with_text, outputs, output.get());
  const DeviceMark gather_end = device_->Mark();
  if (gathered.ok()) gathered = device_->Synchronize();
  if (!gathered.ok()) return gathered;
  report->stage_seconds[static_cast<size_t>(Stage::kGather)] =
      device_->SecondsBetween(gather_begin, gather_end);

  const RankTensorBytes sizes = BytesOfRank(*plan, communicator_->rank());
  RankResult result;
  result.output = std::move(output);
  result.output_bytes = sizes.image_query + (with_text ? sizes.text_query : 0);
  result.report = *report;
  result.total_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  return result;
}

}  // namespace ithaca
