#include "worker/rank_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/plan_policy.h"
#include "worker/silent_communicator.h"

namespace ithaca {
namespace {

// Bytes of a rank's tensors.
struct Sizes {
  int64_t image_query = 0;  // and image output
  int64_t image_key = 0;    // and image value
  int64_t text_query = 0;   // and text output
  int64_t text_key = 0;     // and text value

  int64_t inputs() const {
    return image_query + text_query + 2 * (image_key + text_key);
  }
};

Sizes SizesOf(const SequenceParallelPlan& plan, int rank) {
  const AttentionShape& shape = plan.shape;
  const int64_t image = plan.ranks[static_cast<size_t>(rank)].image_tokens.size;
  const int64_t token = shape.batch * shape.head_dim * ByteSize(shape.dtype);
  Sizes sizes;
  sizes.image_query = token * image * shape.num_heads;
  sizes.image_key = token * image * shape.num_kv_heads;
  sizes.text_query = token * shape.text_query_tokens() * shape.num_heads;
  sizes.text_key = token * shape.text_tokens * shape.num_kv_heads;
  return sizes;
}

}  // namespace

bool GroupSurvives(const absl::Status& status) {
  return status.ok() || absl::IsResourceExhausted(status) ||
         absl::IsUnimplemented(status);
}

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
  int64_t received = 0;
  for (std::string_view piece : call.tensors) {
    received += static_cast<int64_t>(piece.size());
  }
  const int64_t expected = SizesOf(*plan, communicator_->rank()).inputs();
  if (received != expected) {
    return absl::InternalError(
        absl::StrCat("tensors: expected ", expected, " bytes, got ", received));
  }
  return plan;
}

absl::Status RankExecutor::Prepare(const RankCall& call,
                                   const SequenceParallelPlan& plan,
                                   RankInputs* inputs, RankOutputs* outputs,
                                   std::shared_ptr<HostBuffer>* result) {
  const Sizes sizes = SizesOf(plan, communicator_->rank());
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
  const Sizes sizes = SizesOf(plan, communicator_->rank());
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
  const Sizes sizes = SizesOf(plan, communicator_->rank());
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
  return GroupSurvives(agreed) ? why : agreed;
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
  if (!plan.ok()) return Refuse(call, plan.status());
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
  if (!report.ok()) return report.status();
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

  const Sizes sizes = SizesOf(*plan, communicator_->rank());
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
