#include "tests/bench/simulated_rank.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/plan_policy.h"

namespace ithaca::bench {

namespace {

template <typename T>
T Must(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::exit(1);
}

}  // namespace

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

absl::Status WatchedDevice::Synchronize() {
  ++synchronizations_;
  synchronize_entered_ = Now();
  return device_->Synchronize();
}

double CallTimes::LayoutSeconds() const {
  return Stage(ithaca::Stage::kPack) + Stage(ithaca::Stage::kUnpack) +
         Stage(ithaca::Stage::kOutputPack) +
         Stage(ithaca::Stage::kOutputUnpack);
}

SimulatedRank::SimulatedRank(CudaDevice* device, AttentionKernels* kernels,
                             Communicator* communicator)
    : device_(device),
      communicator_(communicator),
      arena_(&device_),
      attention_(&device_, communicator, kernels, &arena_) {}

SequenceParallelPlan SimulatedRank::Plan(
    const AttentionShape& shape, const AttentionOptions& options) const {
  const int world_size = communicator_->world_size();
  return Must(MakeSequenceParallelPlan(
      shape, options, world_size, PlanPolicyFor("cuda:0", shape, world_size)));
}

CallTimes SimulatedRank::Run(const AttentionShape& shape,
                             const AttentionOptions& options,
                             int64_t busy_bytes) {
  const SequenceParallelPlan plan = Plan(shape, options);
  if (tensors_.empty() || shape_ != shape) {
    const int64_t image = shape.batch * plan.ranks[0].image_tokens.size;
    const int64_t text = shape.batch * shape.text_tokens;
    const int64_t query_row = shape.num_heads * shape.head_dim;
    const int64_t key_row = shape.num_kv_heads * shape.head_dim;
    tensors_.clear();
    for (const int64_t elements :
         {image * query_row, image * key_row, image * key_row, text * query_row,
          text * key_row, text * key_row, image * query_row,
          text * query_row}) {
      tensors_.push_back(
          std::make_unique<RandomTensor>(std::max<int64_t>(elements, 1)));
    }
    shape_ = shape;
  }
  if (busy_bytes > busy_bytes_) {
    busy_ = std::make_unique<RandomTensor>(busy_bytes / 2);
    busy_bytes_ = busy_bytes;
  }
  const RankInputs inputs = {tensors_[0]->data(), tensors_[1]->data(),
                             tensors_[2]->data(), tensors_[3]->data(),
                             tensors_[4]->data(), tensors_[5]->data()};
  const RankOutputs outputs = {tensors_[6]->data(), tensors_[7]->data()};
  if (busy_bytes > 0) {
    const absl::Status busy = device_.Zero(busy_->data(), busy_bytes);
    if (!busy.ok()) std::exit(1);
  }
  const int64_t allocations = device_.allocations();
  const int64_t synchronizations = device_.synchronizations();
  const double begin = Now();
  CallTimes times;
  times.report = Must(attention_.Run(plan, ++call_number_, inputs, outputs));
  times.wall_seconds = Now() - begin;
  times.launch_seconds = device_.synchronize_entered() - begin;
  times.allocations = device_.allocations() - allocations;
  times.synchronizations = device_.synchronizations() - synchronizations;
  return times;
}

void SimulatedRank::KeepLayoutWork(const AttentionShape& shape,
                                   const AttentionOptions& options) {
  device_.KeepLayoutWork(true);
  Run(shape, options);
  device_.KeepLayoutWork(false);
}

CallTimes SimulatedRank::Median(const AttentionShape& shape,
                                const AttentionOptions& options, int warm_ups,
                                int repeats, int64_t busy_bytes) {
  for (int i = 0; i < warm_ups; ++i) Run(shape, options, busy_bytes);
  std::vector<CallTimes> calls;
  calls.reserve(static_cast<size_t>(repeats));
  for (int i = 0; i < repeats; ++i) {
    calls.push_back(Run(shape, options, busy_bytes));
  }
  const auto median_of = [&calls](auto field) {
    std::vector<double> values;
    values.reserve(calls.size());
    for (const CallTimes& call : calls) values.push_back(field(call));
    return bench::Median(std::move(values));
  };
  CallTimes median = calls.back();
  for (size_t stage = 0; stage < kNumStages; ++stage) {
    median.report.stage_seconds[stage] = median_of(
        [stage](const CallTimes& c) { return c.report.stage_seconds[stage]; });
  }
  median.launch_seconds =
      median_of([](const CallTimes& c) { return c.launch_seconds; });
  median.wall_seconds =
      median_of([](const CallTimes& c) { return c.wall_seconds; });
  for (const CallTimes& call : calls) {
    median.allocations = std::max(median.allocations, call.allocations);
    median.synchronizations =
        std::max(median.synchronizations, call.synchronizations);
  }
  return median;
}

}  // namespace ithaca::bench
