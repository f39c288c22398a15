// Prints what calls should take on several GPUs of one host, a JSON object a
// line: what many_gpus_table.py puts beside what was measured.
//
//   path_model_table [--text]
//
// With --text the same for people, bytes alone beside 20 us an exchange.

#include <cstdio>
#include <string>
#include <string_view>

#include "core/attention_call.h"
#include "core/plan_policy.h"
#include "core/sequence_parallel_plan.h"
#include "tests/bench/model_shapes.h"
#include "tests/bench/path_model.h"

namespace ithaca::bench {
namespace {

constexpr int kWorldSizes[] = {2, 4, 8};
constexpr CommunicationPrecision kPrecisions[] = {
    CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
    CommunicationPrecision::kInt8};
constexpr HeadSchedule kSchedules[] = {HeadSchedule::kFused,
                                       HeadSchedule::kPerHead};

SequenceParallelPlan Plan(const AttentionShape& shape, int world_size,
                          CommunicationPrecision precision,
                          HeadSchedule schedule) {
  return MakeSequenceParallelPlan(
             shape, ModelOptions(shape, precision, schedule), world_size,
             PlanPolicyFor("cuda:0", shape, world_size))
      .value();
}

void PrintLine(const std::string& key, double value) {
  std::printf("{\"key\": \"%s\", \"value\": %.6g}\n", key.c_str(), value);
}

// What many_gpus_table.py knows the exchange of these many bytes by.
void PrintRate(const std::string& key, double bytes) {
  const MachineRates rates;
  const double seconds =
      rates.exchange_seconds + bytes / rates.exchange_bytes_per_second;
  PrintLine("M2/" + key, bytes / seconds / 1e9);
}

// As exchange_benchmark has them.
void PrintExchanges(int world_size) {
  for (int shift = 16; shift <= 29; ++shift) {
    const std::string size = shift >= 20
                                 ? std::to_string(1 << (shift - 20)) + "MiB"
                                 : std::to_string(1 << (shift - 10)) + "KiB";
    PrintRate("exchange/P" + std::to_string(world_size) + "/" + size,
              static_cast<double>(1 << shift) / world_size * (world_size - 1));
  }
}

double CudaMemorySpeedUp(const AttentionShape& shape, int world_size) {
  const auto seconds = [&shape](int ranks) {
    return PredictCudaMemoryCall(
        Plan(shape, ranks, CommunicationPrecision::kNative,
             HeadSchedule::kAuto),
        MachineRates());
  };
  return seconds(1) / seconds(world_size);
}

void PrintModel(const ModelShape& model, int world_size, bool text) {
  const std::string of =
      std::string(model.name) + "/P" + std::to_string(world_size);
  for (const CommunicationPrecision precision : kPrecisions) {
    for (const HeadSchedule schedule : kSchedules) {
      const SequenceParallelPlan plan =
          Plan(model.shape, world_size, precision, schedule);
      const PathTimes times = PredictPath(plan, MachineRates());
      MachineRates bytes_alone;
      bytes_alone.exchange_seconds = 0;
      const std::string name =
          std::string(Name(precision)) + "/" + std::string(Name(schedule));
      if (text) {
        std::printf(
            "%-10s %-19s lanes %d  attention %7.3f ms  in %5.0f MB  back "
            "%4.0f MB  exchange %6.3f ms  layout %6.3f ms  path/attention "
            "%.3f, bytes alone %.3f\n",
            of.c_str(), name.c_str(), plan.num_lanes, 1e3 * times.attention,
            static_cast<double>(times.bytes_in) / 1e6,
            static_cast<double>(times.bytes_back) / 1e6,
            1e3 * (times.exchange_in + times.exchange_back), 1e3 * times.layout,
            times.OverAttention(),
            PredictPath(plan, bytes_alone).OverAttention());
        continue;
      }
      PrintLine("M1/" + of + "/" + name, times.OverAttention());
      PrintLine("path/" + of + "/" + name, 1e3 * times.path);
      PrintLine("layout/" + of + "/" + name, 1e3 * times.layout);
      if (schedule == HeadSchedule::kFused) {
        PrintRate(of + "/" + name + "/in", static_cast<double>(times.bytes_in));
        PrintRate(of + "/" + name + "/back",
                  static_cast<double>(times.image_bytes_back));
      }
      if (schedule == HeadSchedule::kFused &&
          precision == CommunicationPrecision::kNative) {
        PrintLine("attention/" + of, 1e3 * times.attention);
      }
    }
  }
  const double speed_up = CudaMemorySpeedUp(model.shape, world_size);
  if (text) {
    std::printf("%-10s speed-up through the CUDA memory plane %.2f\n",
                of.c_str(), speed_up);
  } else {
    PrintLine("M3/" + of, speed_up);
  }
}

}  // namespace
}  // namespace ithaca::bench

int main(int argc, char** argv) {
  using ithaca::bench::ModelShapes;
  const bool text = argc > 1 && std::string_view(argv[1]) == "--text";
  for (const auto& model : ModelShapes()) {
    for (const int world_size : ithaca::bench::kWorldSizes) {
      ithaca::bench::PrintModel(model, world_size, text);
    }
  }
  for (const int world_size : ithaca::bench::kWorldSizes) {
    if (!text) ithaca::bench::PrintExchanges(world_size);
  }
  return 0;
}
