// The measurements of one GPU: its two ceilings, attention, the layout work of
// a rank of eight, the host's part, and the first call of a shape.
//
//   gpu_attention_benchmark [--device=N] [--json=FILE] [--quick]
//                           [--parts=NAME,...]
//
// Prints a table a part, and with --json the same numbers for other programs.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tests/bench/gpu_host_costs.h"
#include "tests/bench/gpu_measure.h"
#include "tests/bench/loopback_communicator.h"
#include "tests/bench/simulated_rank.h"
#include "worker/cuda_device.h"
#include "worker/silent_communicator.h"
#include "worker/torch_cuda_attention_kernels.h"

namespace ithaca::bench {
namespace {

constexpr int kWorldSize = 8;
// About a millisecond of the device's time: longer than the host needs to give
// it a call's work.
constexpr int64_t kBusyBytes = int64_t{4} << 30;

AttentionShape Shape(int64_t image, int64_t text, int64_t heads,
                     int64_t head_dim = 128) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = image;
  shape.text_tokens = text;
  shape.valid_text_tokens = {text};
  shape.num_heads = heads;
  shape.num_kv_heads = heads;
  shape.head_dim = head_dim;
  return shape;
}

struct Model {
  const char* name;
  AttentionShape shape;
};

const std::vector<Model>& Models() {
  static const auto* const models = new std::vector<Model>{
      {"Wan720", Shape(75600, 0, 40)},     {"H3", Shape(38051, 0, 56)},
      {"Wan480", Shape(32760, 0, 40)},     {"FLUX", Shape(4096, 512, 24)},
      {"SD3.5", Shape(4096, 333, 38, 64)}, {"Hunyuan", Shape(118800, 256, 24)},
  };
  return *models;
}

const AttentionShape& ModelShape(std::string_view name) {
  for (const Model& model : Models()) {
    if (name == model.name) return model.shape;
  }
  std::exit(1);
}

AttentionOptions Options(
    CommunicationPrecision precision = CommunicationPrecision::kNative,
    HeadSchedule schedule = HeadSchedule::kFused) {
  AttentionOptions options;
  options.softmax_scale = 0.08838834764831845;  // 1 / sqrt(128)
  options.precision = precision;
  options.schedule = schedule;
  return options;
}

class Benchmark {
 public:
  Benchmark(CudaDevice* device, bool quick)
      : device_(*device), repeats_(quick ? 5 : 20), kernels_(device) {
    nccl_ = MakeLoopback(LoopbackCommunicator::Transfer::kNccl);
    order_only_ = MakeLoopback(LoopbackCommunicator::Transfer::kOrderOnly);
    rank_ = std::make_unique<SimulatedRank>(device, &kernels_, nccl_.get());
    silent_rank_ =
        std::make_unique<SimulatedRank>(device, &kernels_, order_only_.get());
  }

  using Part = void (Benchmark::*)();
  static const std::vector<std::pair<std::string, Part>>& Parts() {
    static const auto* const parts =
        new std::vector<std::pair<std::string, Part>>{
            {"ceilings", &Benchmark::Ceilings},
            {"attention", &Benchmark::Attention},
            {"lanes", &Benchmark::HeadsOfALane},
            {"layout", &Benchmark::Layout},
            {"launches", &Benchmark::Launches},
            {"host", &Benchmark::HostCosts},
            {"first-calls", &Benchmark::FirstCalls},
        };
    return *parts;
  }

  // All parts, or those named, in the order of Parts().
  nlohmann::ordered_json Run(const std::set<std::string>& names) {
    for (const auto& [name, part] : Parts()) {
      if (names.empty() || names.contains(name)) (this->*part)();
    }
    return results_;
  }

 private:
  std::unique_ptr<LoopbackCommunicator> MakeLoopback(
      LoopbackCommunicator::Transfer transfer) {
    auto made = LoopbackCommunicator::Make(&device_, kWorldSize, transfer);
    if (made.ok()) return *std::move(made);
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    std::exit(1);
  }

  void Record(const std::string& id, const std::string& what, double value,
              const char* unit, const std::string& target = "") {
    std::printf("%-4s %-52s %10.4g %-8s %s\n", id.c_str(), what.c_str(), value,
                unit, target.c_str());
    std::fflush(stdout);
    results_.push_back({{"id", id},
                        {"what", what},
                        {"value", value},
                        {"unit", unit},
                        {"target", target}});
  }

  void Ceilings() {
    matmul_rate_ = MatmulRate(device_);
    Record("", "matmul bf16 8192^3", matmul_rate_ / 1e12, "TFLOP/s");
    copy_rate_ = CopyRate(device_, int64_t{2} << 30);
    Record("", "copy of 2 GiB, read plus written", copy_rate_ / 1e12, "TB/s");
  }

  // Seconds of one attention over [tokens, heads, 128] rows.
  double AttentionSeconds(int64_t tokens, int64_t heads, int64_t kv_heads,
                          AttentionKernelKind kernel) {
    constexpr int64_t kHeadDim = 128;
    const RandomTensor query(tokens * heads * kHeadDim);
    const RandomTensor key(tokens * kv_heads * kHeadDim);
    const RandomTensor value(tokens * kv_heads * kHeadDim);
    AttentionArguments arguments;
    arguments.dtype = DataType::kBFloat16;
    arguments.head_dim = kHeadDim;
    arguments.softmax_scale = Options().softmax_scale;
    arguments.kernel = kernel;
    const auto rows = [tokens](const RandomTensor& tensor, int64_t of_heads) {
      return TokenRows{tensor.data(), tokens, of_heads, of_heads * kHeadDim,
                       kHeadDim};
    };
    arguments.query = rows(query, heads);
    arguments.key = rows(key, kv_heads);
    arguments.value = rows(value, kv_heads);
    return MedianSeconds(
        device_,
        [&] {
          const auto attended = kernels_.Attend(arguments);
          if (attended.ok()) return;
          std::fprintf(stderr, "%s\n", attended.status().ToString().c_str());
          std::exit(1);
        },
        3, repeats_);
  }

  void Attention() {
    struct Case {
      const char* id;
      int64_t tokens;
      int64_t heads;
      int64_t kv_heads;
    };
    for (const auto& [id, tokens, heads, kv_heads] :
         std::vector<Case>{{"G1", 16384, 24, 24},
                           {"G1", 33024, 24, 24},
                           {"G1", 33024, 24, 8},
                           {"G1", 75600, 5, 5},
                           {"G1b", 4608, 24, 24},
                           {"G1b", 4608, 3, 3}}) {
      const double seconds = AttentionSeconds(tokens, heads, kv_heads,
                                              AttentionKernelKind::kCudnn);
      const double rate = 4.0 * static_cast<double>(tokens) *
                          static_cast<double>(tokens) *
                          static_cast<double>(heads) * 128 / seconds;
      const std::string what = absl::StrCat("attention ", tokens, " tokens, ",
                                            heads, "/", kv_heads, " heads");
      Record(id, what, rate / 1e12, "TFLOP/s",
             std::string_view(id) == "G1b" ? ">= 600 at 24 heads" : "");
      // The chip's clock falls under load: the ceiling is measured again, right
      // after what it is held against.
      Record(id, what + " / matmul", rate / MatmulRate(device_), "",
             std::string_view(id) == "G1" ? ">= 0.87" : "");
    }
    const double flash =
        AttentionSeconds(4608, 24, 24, AttentionKernelKind::kFlash);
    Record("", "FLASH, 4608 tokens, 24 heads",
           4.0 * 4608 * 4608 * 24 * 128 / flash / 1e12, "TFLOP/s");
  }

  // What the choice of lanes rests on (core/plan_policy.cc).
  void HeadsOfALane() {
    for (const char* name : {"Wan720", "H3", "Wan480"}) {
      const AttentionShape& shape = ModelShape(name);
      const int64_t most = shape.num_heads / kWorldSize;
      for (int64_t heads = 1; heads <= most; ++heads) {
        Record("", absl::StrCat(name, " attention, ", heads, " heads at once"),
               1e3 * AttentionSeconds(shape.image_tokens, heads, heads,
                                      AttentionKernelKind::kCudnn),
               "ms");
      }
    }
  }

  // Seconds of a rank's layout work, launch after launch: without the marks,
  // the exchanges and the attention that lie in between in a call and add some
  // microseconds to each launch. Several ranks' memory takes turns, so that
  // small tensors do not stay in the cache.
  double LayoutSeconds(const AttentionShape& shape,
                       const AttentionOptions& options) {
    constexpr int kSets = 4;
    std::vector<std::unique_ptr<SimulatedRank>> ranks;
    for (int i = 0; i < kSets; ++i) {
      ranks.push_back(std::make_unique<SimulatedRank>(&device_, &kernels_,
                                                      order_only_.get()));
      ranks.back()->KeepLayoutWork(shape, options);
    }
    const auto repeat = [&ranks] {
      for (const auto& rank : ranks) rank->RepeatLayoutWork();
    };
    return MedianSeconds(device_, repeat, 3, repeats_) / kSets;
  }

  void Layout() {
    struct Target {
      const char* name;
      const char* share;
    };
    for (const auto& [name, share] : std::vector<Target>{{"Wan720", "<= 0.011"},
                                                         {"H3", "<= 0.022"},
                                                         {"Wan480", "<= 0.026"},
                                                         {"FLUX", "<= 0.18"},
                                                         {"Hunyuan", ""}}) {
      const AttentionShape& shape = ModelShape(name);
      for (const auto precision :
           {CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
            CommunicationPrecision::kInt8}) {
        const CallTimes times =
            rank_->Median(shape, Options(precision), 3, repeats_, kBusyBytes);
        const bool native = precision == CommunicationPrecision::kNative;
        const std::string what =
            absl::StrCat(name, " P=8 ", std::string(Name(precision)));
        const double layout = LayoutSeconds(shape, Options(precision));
        const double attention = times.Stage(Stage::kAttention);
        Record("G4", what + " layout / attention", layout / attention, "",
               native ? share : "");
        Record("", what + " layout, launch after launch", 1e6 * layout, "us");
        Record("", what + " layout, between a call's marks",
               1e6 * times.LayoutSeconds(), "us");
        for (const auto stage : {Stage::kPack, Stage::kUnpack,
                                 Stage::kOutputPack, Stage::kOutputUnpack}) {
          Record("",
                 absl::StrCat(what, "   ", std::string(ithaca::Name(stage))),
                 1e6 * times.Stage(stage), "us");
        }
        Record("", what + " attention", 1e6 * attention, "us");
        if (std::string_view(name) == "Hunyuan") LightX2V(precision, layout);
      }
    }
  }

  // Against LightX2V's four kernels on the same shape and machine type
  // (microseconds, see the facts in docs/measurements/h200.md).
  void LightX2V(CommunicationPrecision precision, double layout_seconds) {
    const double us = 1e6 * layout_seconds;
    if (precision == CommunicationPrecision::kNative) {
      Record("G3", "layout / LightX2V, NATIVE", us / 370, "", "<= 0.49");
    }
    if (precision == CommunicationPrecision::kFp8E4m3) {
      Record("G3", "layout / LightX2V row-tiled branch, FP8", us / 293, "",
             "<= 0.95");
      Record("G3", "layout / LightX2V HEAD, FP8", us / 692, "", "<= 0.40");
    }
  }

  void Launches() {
    struct Case {
      const char* name;
      CommunicationPrecision precision;
      HeadSchedule schedule;
    };
    for (const auto& [name, precision, schedule] : std::vector<Case>{
             {"FLUX", CommunicationPrecision::kNative, HeadSchedule::kFused},
             {"FLUX", CommunicationPrecision::kFp8E4m3, HeadSchedule::kFused},
             {"Wan720", CommunicationPrecision::kNative, HeadSchedule::kFused},
             {"Wan720", CommunicationPrecision::kNative,
              HeadSchedule::kAuto}}) {
      const AttentionShape& shape = ModelShape(name);
      const AttentionOptions options = Options(precision, schedule);
      const CallTimes times =
          silent_rank_->Median(shape, options, 5, 3 * repeats_);
      const CallTimes with_nccl =
          rank_->Median(shape, options, 5, 3 * repeats_);
      const std::string what =
          absl::StrCat(name, " ", std::string(Name(precision)), ", ",
                       rank_->Plan(shape, options).num_lanes, " lanes: ");
      Record("G5", what + "host launch, NCCL's calls left out",
             1e6 * times.launch_seconds, "us", "<= 60");
      Record("", what + "host launch, NCCL to itself",
             1e6 * with_nccl.launch_seconds, "us");
      Record("G5", what + "allocations", static_cast<double>(times.allocations),
             "", "0");
      Record("G5", what + "synchronizations",
             static_cast<double>(times.synchronizations), "", "1");
      Record("", what + "whole call", 1e6 * with_nccl.wall_seconds, "us");
    }
  }

  void HostCosts() {
    MeasureHostCosts(
        device_, kernels_, silent_rank_->Plan(ModelShape("FLUX"), Options()),
        *order_only_, *nccl_, 3 * repeats_,
        [this](const char* what, double seconds) {
          Record("", absl::StrCat("host: ", what), 1e6 * seconds, "us");
        });
  }

  void FirstCalls() {
    AttentionShape shape = Shape(5000, 0, 24);
    rank_->Run(shape, Options());
    shape.image_tokens = 5200;
    const double first = rank_->Run(shape, Options()).wall_seconds;
    const double second = rank_->Run(shape, Options()).wall_seconds;
    Record("G6", "new shape: first call over the second",
           1e3 * (first - second), "ms", "<= 60");

    SilentCommunicator silent(0, kWorldSize);
    SimulatedRank warm_up(&device_, &kernels_, &silent);
    shape.image_tokens = 5400;
    warm_up.Run(shape, Options());
    const double warm_first = rank_->Run(shape, Options()).wall_seconds;
    const double warm_second = rank_->Run(shape, Options()).wall_seconds;
    Record("G6", "shape prepared: first call over the second",
           1e3 * (warm_first - warm_second), "ms", "<= 1");

    constexpr int kShapes = 40;
    const int64_t before = ResidentBytes();
    for (int i = 0; i < kShapes; ++i) {
      shape.image_tokens += 8;
      rank_->Run(shape, Options());
    }
    Record("", "host memory kept for a shape",
           static_cast<double>(ResidentBytes() - before) / kShapes / 1024,
           "KiB");
  }

  CudaDevice& device_;
  const int repeats_;
  TorchCudaAttentionKernels kernels_;
  std::unique_ptr<LoopbackCommunicator> nccl_;
  std::unique_ptr<LoopbackCommunicator> order_only_;
  std::unique_ptr<SimulatedRank> rank_;
  std::unique_ptr<SimulatedRank> silent_rank_;
  double matmul_rate_ = 0;
  double copy_rate_ = 0;
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

}  // namespace
}  // namespace ithaca::bench

int main(int argc, char** argv) {
  int ordinal = 0;
  std::string json;
  bool quick = false;
  std::set<std::string> parts;
  std::set<std::string> known;
  for (const auto& [name, part] : ithaca::bench::Benchmark::Parts()) {
    known.insert(name);
  }
  CLI::App app("Measures attention and the layout work of a rank on one GPU.");
  app.add_option("--device", ordinal, "GPU, by its number");
  app.add_option("--json", json, "Write the numbers to this file");
  app.add_flag("--quick", quick, "Fewer repeats");
  app.add_option("--parts", parts, "What to measure (default: everything)")
      ->delimiter(',')
      ->check(CLI::IsMember(known));
  CLI11_PARSE(app, argc, argv);

  auto device = ithaca::CudaDevice::Open(ordinal);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", ithaca::bench::GpuName(**device).c_str());
  ithaca::bench::Benchmark benchmark(device->get(), quick);
  const nlohmann::ordered_json results = benchmark.Run(parts);
  if (!json.empty()) std::ofstream(json) << results.dump(1) << '\n';
  return 0;
}
