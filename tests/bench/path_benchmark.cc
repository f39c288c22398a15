// Whole calls of every rank, a process and a GPU each, over attention alone:
// M1, with what the stages took, and how fast the calls' own exchanges run.
//
//   path_benchmark [--results=FILE] [--world-sizes=2,4,8] [--models=NAME,...]
//                  [--quick]
//
// Ratios are those of the slowest rank between the vote, at which all ranks
// meet, and its last unpack, over the slowest rank's attention alone. Every
// kind of call is checked once: the process ends with 1 if an output is wrong.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/gpu_measure.h"
#include "tests/bench/model_shapes.h"
#include "tests/bench/path_model.h"
#include "tests/bench/path_rank.h"
#include "tests/bench/rank_group.h"
#include "worker/communicator.h"
#include "worker/nccl_test_ranks.h"
#include "worker/ulysses_attention.h"

namespace ithaca::bench {
namespace {

struct Flags {
  std::vector<int> world_sizes;
  std::vector<std::string> models;
  std::string results;
  bool quick = false;
  double seconds = 90;  // a group
};

// Of standard normal tensors, against the same attention on one GPU.
double AcceptedError(CommunicationPrecision precision) {
  switch (precision) {
    case CommunicationPrecision::kNative:
      return 1e-2;
    case CommunicationPrecision::kFp8E4m3:
      return 8e-2;
    case CommunicationPrecision::kInt8:
      return 3e-2;
  }
  return 0;
}

class PathBenchmark {
 public:
  PathBenchmark(RankGroup* group, const Flags& flags)
      : group_(*group),
        flags_(flags),
        results_(*group, flags.results),
        rank_(group) {}

  // Whether every output was right.
  bool Run() {
    const double matmul = group_.Largest({-MatmulRate(group_.device())})[0];
    results_.Add(absl::StrCat("matmul/P", group_.world_size()), -matmul / 1e12,
                 "TFLOP/s", "the slowest rank's");
    for (const ModelShape& model : ModelShapes()) {
      if (!flags_.models.empty() &&
          std::find(flags_.models.begin(), flags_.models.end(), model.name) ==
              flags_.models.end()) {
        continue;
      }
      RunModel(model);
    }
    return right_;
  }

 private:
  // As many as a quarter of a second holds, by the model: the same on all
  // ranks.
  int Repeats(double seconds) const {
    if (group_.shares_gpus() || flags_.quick) return 3;
    return static_cast<int>(std::clamp(0.25 / seconds, 5.0, 40.0));
  }

  void RunModel(const ModelShape& model) {
    const std::string of = absl::StrCat(model.name, "/P", group_.world_size());
    rank_.SetShape(model.shape);
    const auto plan_of = [&](CommunicationPrecision precision,
                             HeadSchedule schedule) {
      return rank_.Plan(ModelOptions(model.shape, precision, schedule));
    };
    const SequenceParallelPlan native =
        plan_of(CommunicationPrecision::kNative, HeadSchedule::kFused);
    const double predicted = PredictPath(native, MachineRates()).attention;
    group_.Barrier();
    const double attention =
        group_.Largest({rank_.AttentionSeconds(native, Repeats(predicted))})[0];
    results_.Add("attention/" + of, 1e3 * attention, "ms",
                 "alone, a rank's heads");
    for (const auto precision :
         {CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
          CommunicationPrecision::kInt8}) {
      for (const auto schedule :
           {HeadSchedule::kFused, HeadSchedule::kPerHead}) {
        RunCall(of, plan_of(precision, schedule), attention);
      }
    }
  }

  void RunCall(const std::string& of, const SequenceParallelPlan& plan,
               double attention) {
    const std::string name =
        absl::StrCat(of, "/", std::string(Name(plan.options.precision)), "/",
                     std::string(Name(plan.options.schedule)));
    rank_.Run(plan);
    const double error = group_.Largest({rank_.OutputError(plan)})[0];
    if (!(error <= AcceptedError(plan.options.precision))) {
      right_ = false;
      results_.Add("WRONG/" + name, error, "", "relative L2 distance");
    }
    rank_.Run(plan);
    const int repeats = Repeats(attention);
    std::vector<double> paths;
    std::vector<double> walls;
    std::vector<std::vector<double>> stages(kNumStages);
    for (int i = 0; i < repeats; ++i) {
      group_.Barrier();
      const PathTime time = rank_.Run(plan);
      paths.push_back(time.path_seconds);
      walls.push_back(time.wall_seconds);
      for (size_t stage = 0; stage < kNumStages; ++stage) {
        stages[stage].push_back(time.report.stage_seconds[stage]);
      }
    }
    // The slowest rank of each call, then the median call.
    const double path = Median(group_.Largest(paths));
    const double wall = Median(group_.Largest(walls));
    std::vector<double> stage_medians;
    for (const std::vector<double>& stage : stages) {
      stage_medians.push_back(Median(stage));
    }
    stage_medians = group_.Largest(stage_medians);
    std::string detail =
        absl::StrFormat("%d lanes, error %.1e, ms:", plan.num_lanes, error);
    for (size_t stage = 0; stage < kNumStages; ++stage) {
      if (stage_medians[stage] < 5e-7) continue;
      absl::StrAppendFormat(
          &detail, " %s %.3f",
          std::string(Name(static_cast<Stage>(stage))).c_str(),
          1e3 * stage_medians[stage]);
    }
    results_.Add("M1/" + name, path / attention, "", detail);
    results_.Add("path/" + name, 1e3 * path, "ms", "slowest rank");
    results_.Add("call/" + name, 1e3 * wall, "ms", "the vote included");
    if (plan.num_lanes == 1) MeasureExchanges(name, repeats);
  }

  // The last call's exchanges again, each alone, on memory of their own.
  void MeasureExchanges(const std::string& name, int repeats) {
    const std::vector<RecordedExchange> exchanges = rank_.exchanges();
    constexpr const char* kNames[] = {"in", "back", "text"};
    for (size_t i = 0; i < exchanges.size() && i < std::size(kNames); ++i) {
      const auto [seconds, bytes] = Replay(exchanges[i], repeats);
      results_.Add(absl::StrCat("M2/", name, "/", kNames[i]),
                   bytes / seconds / 1e9, "GB/s",
                   absl::StrFormat("%.1f MB a rank, %.1f us", bytes / 1e6,
                                   1e6 * seconds));
    }
  }

  // Seconds, and bytes that the rank with most to do sends or receives.
  std::pair<double, double> Replay(const RecordedExchange& recorded,
                                   int repeats) {
    int64_t sent = 0;
    int64_t received = 0;
    int64_t room = 0;
    const auto place = [&room](int64_t bytes) {
      const int64_t at = room;
      room += (bytes + 255) / 256 * 256;
      return at;
    };
    std::vector<int64_t> places;
    for (const SendSegment& segment : recorded.sends) {
      sent += segment.bytes;
      places.push_back(place(segment.bytes));
    }
    for (const RecvSegment& segment : recorded.recvs) {
      received += segment.bytes;
      places.push_back(place(segment.bytes));
    }
    CudaDevice& device = group_.device();
    auto* const memory = static_cast<char*>(Must(device.Allocate(room)));
    Must(device.Zero(memory, room));
    RecordedExchange exchange = recorded;
    auto next = places.begin();
    for (SendSegment& segment : exchange.sends) segment.data = memory + *next++;
    for (RecvSegment& segment : exchange.recvs) segment.data = memory + *next++;
    Communicator& communicator = group_.communicator();
    DeviceMark begin = device.Mark();
    for (int i = -2; i < repeats; ++i) {
      if (i == 0) {
        group_.Barrier();
        begin = device.Mark();
      }
      Must(communicator.WaitExchange(
          Must(communicator.StartExchange(exchange.sends, exchange.recvs))));
    }
    const DeviceMark end = device.Mark();
    Must(device.Synchronize());
    const std::vector<double> largest =
        group_.Largest({device.SecondsBetween(begin, end) / repeats,
                        static_cast<double>(std::max(sent, received))});
    device.Free(memory);
    return {largest[0], largest[1]};
  }

  RankGroup& group_;
  const Flags& flags_;
  Results results_;
  PathRank rank_;
  bool right_ = true;
};

}  // namespace
}  // namespace ithaca::bench

int main(int argc, char** argv) {
  using ithaca::bench::RankGroup;
  const auto role = ithaca::ParseRankRole(argc, argv);
  if (role.has_value()) --argc;
  ithaca::bench::Flags flags;
  CLI::App app("Measures whole calls of groups of GPUs of this host.");
  app.add_option("--world-sizes", flags.world_sizes, "Ranks of each group")
      ->delimiter(',');
  app.add_option("--models", flags.models, "Wan720, H3, Wan480, FLUX")
      ->delimiter(',');
  app.add_option("--results", flags.results, "Add the numbers to this file");
  app.add_flag("--quick", flags.quick, "Few repeats");
  app.add_option("--seconds", flags.seconds, "At most, each group");
  CLI11_PARSE(app, argc, argv);
  if (role.has_value()) {
    RankGroup group(*role);
    bool right = true;
    {
      ithaca::bench::PathBenchmark benchmark(&group, flags);
      right = benchmark.Run();
      group.Barrier();  // nobody leaves while others exchange with it
    }
    return right ? 0 : 1;
  }
  bool well = true;
  for (const int size : ithaca::bench::WorldSizes(flags.world_sizes)) {
    well &= ithaca::bench::RunGroup(
        "path", size, std::vector<std::string>(argv + 1, argv + argc),
        flags.seconds);
  }
  return well ? 0 : 1;
}
