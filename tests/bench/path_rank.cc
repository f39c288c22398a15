#include "tests/bench/path_rank.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/randn.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/plan_policy.h"
#include "tests/bench/gpu_measure.h"
#include "worker/cuda_status.h"

namespace ithaca::bench {

namespace {

// What LibTorch was given on its own stream is done.
void Settle() { Must(CudaStatus(cudaDeviceSynchronize(), "LibTorch's work")); }

TokenRows Rows(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.size(0), tensor.size(1), tensor.stride(0),
          tensor.stride(1)};
}

AttentionArguments Arguments(const SequenceParallelPlan& plan,
                             AttentionKernelKind kernel,
                             const at::Tensor& query, const at::Tensor& key,
                             const at::Tensor& value) {
  AttentionArguments arguments;
  arguments.dtype = plan.shape.dtype;
  arguments.head_dim = plan.shape.head_dim;
  arguments.softmax_scale = plan.options.softmax_scale;
  arguments.query = Rows(query);
  arguments.key = Rows(key);
  arguments.value = Rows(value);
  arguments.kernel = kernel;
  return arguments;
}

}  // namespace

PathRank::PathRank(RankGroup* group)
    : group_(*group),
      kernels_(&group->device()),
      communicator_(&group->communicator()),
      arena_(&group->device()),
      attention_(&group->device(), &communicator_, &kernels_, &arena_) {}

SequenceParallelPlan PathRank::Plan(const AttentionOptions& options) const {
  const int world_size = group_.world_size();
  return Must(
      MakeSequenceParallelPlan(shape_, options, world_size,
                               PlanPolicyFor("cuda:0", shape_, world_size)));
}

at::Tensor PathRank::Make(const SequenceParallelPlan& plan, Role role,
                          int part) const {
  const int64_t rows =
      shape_.batch *
      (part == kText ? shape_.text_tokens : plan.ranks[part].image_tokens.size);
  const int64_t heads = role == kQuery ? shape_.num_heads : shape_.num_kv_heads;
  const at::Device gpu(
      at::kCUDA, static_cast<c10::DeviceIndex>(group_.device().ordinal()));
  // The device's own generator: no other thread asks it.
  at::Generator generator = at::globalContext().defaultGenerator(gpu);
  generator.set_current_seed(static_cast<uint64_t>(1000 * role + part + 10));
  return at::randn({rows, heads, shape_.head_dim},
                   at::TensorOptions().dtype(at::kBFloat16).device(gpu));
}

void PathRank::SetShape(const AttentionShape& shape) {
  shape_ = shape;
  const SequenceParallelPlan plan = Plan(AttentionOptions());
  for (const Role role : {kQuery, kKey, kValue}) {
    image_[role] = Make(plan, role, group_.rank());
    text_[role] = Make(plan, role, kText);
  }
  image_output_ = at::empty_like(image_[kQuery]);
  text_output_ = at::empty_like(text_[kQuery]);
  Settle();
}

PathTime PathRank::Run(const SequenceParallelPlan& plan) {
  const RankInputs inputs = {
      image_[kQuery].data_ptr(), image_[kKey].data_ptr(),
      image_[kValue].data_ptr(), text_[kQuery].data_ptr(),
      text_[kKey].data_ptr(),    text_[kValue].data_ptr()};
  const RankOutputs outputs = {image_output_.data_ptr(),
                               text_output_.data_ptr()};
  const absl::Time begin = absl::Now();
  PathTime time;
  time.report =
      Must(attention_.Run(plan, group_.NextCallNumber(), inputs, outputs));
  time.wall_seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  for (const double seconds : time.report.stage_seconds) {
    time.path_seconds += seconds;
  }
  time.path_seconds -=
      time.report.stage_seconds[static_cast<size_t>(Stage::kScatter)];
  return time;
}

at::Tensor PathRank::OwnRows(int64_t head, const at::Tensor& image,
                             const at::Tensor& text) const {
  return at::cat({image.select(1, head), text.select(1, head)}).unsqueeze(1);
}

at::Tensor PathRank::WholeHead(const SequenceParallelPlan& plan, Role role,
                               int64_t head) const {
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    parts.push_back(Make(plan, role, rank).select(1, head).clone());
  }
  parts.push_back(text_[role].select(1, head));
  return at::cat(parts).unsqueeze(1);
}

double PathRank::OutputError(const SequenceParallelPlan& plan) {
  double largest = 0;
  const int64_t group = shape_.num_heads / shape_.num_kv_heads;
  for (const int64_t head : {int64_t{0}, shape_.num_heads - 1}) {
    const at::Tensor query = OwnRows(head, image_[kQuery], text_[kQuery]);
    const at::Tensor key = WholeHead(plan, kKey, head / group);
    const at::Tensor value = WholeHead(plan, kValue, head / group);
    const at::Tensor output = OwnRows(head, image_output_, text_output_);
    Settle();
    const AttentionKernelKind kernel =
        Must(kernels_.Choose(AttentionKernelKind::kAuto, shape_));
    const AttentionResult result =
        Must(kernels_.Attend(Arguments(plan, kernel, query, key, value)));
    Must(group_.device().Synchronize());
    const at::Tensor wanted = at::from_blob(const_cast<void*>(result.out.data),
                                            output.sizes(), output.options());
    const at::Tensor distance =
        output.to(at::kFloat).sub(wanted.to(at::kFloat));
    const double error =
        at::linalg_vector_norm(distance).item<double>() /
        at::linalg_vector_norm(wanted.to(at::kFloat)).item<double>();
    // A NaN is no small error.
    if (!(error <= largest)) largest = error;
  }
  return largest;
}

double PathRank::AttentionSeconds(const SequenceParallelPlan& plan,
                                  int repeats) {
  const RankShare& share = plan.ranks[group_.rank()];
  const int64_t tokens = shape_.image_tokens + shape_.valid_text_tokens[0];
  const auto random = [&](int64_t heads) {
    return at::randn(
        {tokens, heads, shape_.head_dim},
        at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA));
  };
  const at::Tensor query = random(share.query_heads.size);
  const at::Tensor key = random(share.kv_heads.size);
  const at::Tensor value = random(share.kv_heads.size);
  Settle();
  const AttentionArguments arguments =
      Arguments(plan, Must(kernels_.Choose(AttentionKernelKind::kAuto, shape_)),
                query, key, value);
  return MedianSeconds(
      group_.device(), [&] { Must(kernels_.Attend(arguments)); }, 3, repeats);
}

}  // namespace ithaca::bench
