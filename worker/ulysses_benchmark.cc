// One call of the FLUX shape on the CPU: a lone rank, and ranks on threads with
// one core each to attend on. Time is the slowest rank's; the table's columns
// are its stages in milliseconds.
//
//   bazel run //worker:ulysses_benchmark

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/attention_call.h"
#include "tests/oracle/tensor_data.h"
#include "worker/ulysses_attention.h"
#include "worker/ulysses_test_group.h"

namespace ithaca {
namespace {

AttentionShape FluxShape(int64_t heads) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = 4096;
  shape.text_tokens = 512;
  shape.valid_text_tokens = {512};
  shape.num_heads = shape.num_kv_heads = heads;
  shape.head_dim = 128;
  return shape;
}

void Call(benchmark::State& state) {
  // A third of FLUX's 24 heads, so that a run takes minutes; the stages scale
  // with the number of heads.
  const AttentionShape shape = FluxShape(8);
  AttentionOptions options = DefaultOptions(shape);
  options.kernel = AttentionKernelKind::kFlash;
  options.schedule = static_cast<HeadSchedule>(state.range(1));
  options.precision = static_cast<CommunicationPrecision>(state.range(2));
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 1);
  UlyssesTestGroup group(static_cast<int>(state.range(0)));
  std::vector<double> stages(kNumStages);
  for (auto _ : state) {
    std::vector<RankReport> reports;
    if (!group.Run(shape, options, inputs, &reports).ok()) {
      state.SkipWithError("the call failed");
      return;
    }
    double slowest = 0;
    for (const RankReport& report : reports) {
      const double seconds = std::accumulate(report.stage_seconds.begin(),
                                             report.stage_seconds.end(), 0.0);
      if (seconds < slowest) continue;
      slowest = seconds;
      std::copy(report.stage_seconds.begin(), report.stage_seconds.end(),
                stages.begin());
    }
    state.SetIterationTime(slowest);
  }
  for (int stage = 0; stage < kNumStages; ++stage) {
    state.counters[std::string(Name(static_cast<Stage>(stage)))] =
        stages[static_cast<size_t>(stage)] * 1e3;
  }
  state.SetLabel(std::string(Name(options.schedule)) + " " +
                 std::string(Name(options.precision)));
}

BENCHMARK(Call)
    ->ArgNames({"ranks", "schedule", "precision"})
    ->Args({1, int64_t(HeadSchedule::kFused),
            int64_t(CommunicationPrecision::kNative)})
    ->ArgsProduct({{2, 4},
                   {int64_t(HeadSchedule::kFused),
                    int64_t(HeadSchedule::kPerHead)},
                   {int64_t(CommunicationPrecision::kNative),
                    int64_t(CommunicationPrecision::kFp8E4m3),
                    int64_t(CommunicationPrecision::kInt8)}})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace ithaca

BENCHMARK_MAIN();
