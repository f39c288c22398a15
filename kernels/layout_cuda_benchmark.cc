// The layout stages of one rank on one GPU: time, and rate as a share of the
// device copy's in the same run. Bytes are the fewest that a stage must read
// and write. Image tokens alone, bfloat16, random data, each repetition on
// another set of buffers, medians.
//
//   qkv_pre    the rank's q, k, v rows to a chunk for each rank: one pass
//   qkv_post   the chunks of all ranks to [S, H_local, D]: 8-bit alone, since
//              NATIVE chunks already are rows of it
//   attn_pre   output rows to a chunk for each rank: 8-bit alone, likewise
//   attn_post  the chunks of all ranks to [S_local, H, D]

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "kernels/element.h"
#include "kernels/layout.h"
#include "kernels/layout_cuda.h"

namespace ithaca::kernels {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

class DeviceMemory {
 public:
  explicit DeviceMemory(int64_t bytes) {
    Check(cudaMalloc(&memory_, bytes), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(memory_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  char* data() const { return static_cast<char*>(memory_); }

 private:
  void* memory_ = nullptr;
};

// Normal bfloat16 values, repeated every 16 Mi elements.
void FillRandom(const DeviceMemory& memory, int64_t bytes) {
  static const std::vector<uint16_t> values = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> made(1 << 24);
    for (uint16_t& value : made) {
      value = Element<DataType::kBFloat16>::Round(normal(random));
    }
    return made;
  }();
  const auto pattern = static_cast<int64_t>(values.size() * sizeof(uint16_t));
  for (int64_t at = 0; at < bytes; at += pattern) {
    Check(cudaMemcpy(memory.data() + at, values.data(),
                     std::min(pattern, bytes - at), cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }
}

// Median seconds of launch(i), i from 0 to `launches`: they are queued one
// behind the other, and the time of all is shared out, so that none of it is an
// event's.
double MedianSeconds(int repetitions, int launches,
                     const std::function<void(int)>& launch) {
  constexpr int kWarmUp = 2;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check(cudaEventCreate(&begin), "cudaEventCreate");
  Check(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> seconds;
  for (int i = 0; i < kWarmUp + repetitions; ++i) {
    Check(cudaEventRecord(begin), "cudaEventRecord");
    for (int j = 0; j < launches; ++j) launch(j);
    Check(cudaEventRecord(end), "cudaEventRecord");
    Check(cudaEventSynchronize(end), "a kernel");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end),
          "cudaEventElapsedTime");
    if (i >= kWarmUp) seconds.push_back(milliseconds * 1e-3 / launches);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::nth_element(seconds.begin(), seconds.begin() + repetitions / 2,
                   seconds.end());
  return seconds[repetitions / 2];
}

double CopyRate(int repetitions) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const DeviceMemory src(kBytes);
  const DeviceMemory dst(kBytes);
  FillRandom(src, kBytes);
  return 2 * kBytes / MedianSeconds(repetitions, /*launches=*/4, [&](int) {
           Check(cudaMemcpyAsync(dst.data(), src.data(), kBytes,
                                 cudaMemcpyDeviceToDevice),
                 "cudaMemcpyAsync");
         });
}

struct Shape {
  const char* name;
  int64_t image_tokens;
  int64_t heads;
  int64_t head_dim;
  int world_size;
};

constexpr Shape kShapes[] = {
    {"Hunyuan", 118800, 24, 128, 8}, {"Hunyuan", 118800, 24, 128, 4},
    {"Hunyuan", 118800, 24, 128, 2}, {"Wan720", 75600, 40, 128, 8},
    {"Wan720", 75600, 40, 128, 2},   {"H3", 38051, 56, 128, 8},
    {"Wan480", 32760, 40, 128, 8},   {"FLUX", 4096, 24, 128, 8},
    {"FLUX", 4096, 24, 128, 1},      {"SD3.5", 4096, 38, 64, 8},
};

// A stage of rank 0: tensors of `rows` rows on the one side, chunks of the same
// rows, one for each rank and tensor, on the other.
struct Chunk {
  int64_t first_row_token;  // of the tensor side, where the chunk begins
  int64_t first_head;
  int64_t tokens;
  int64_t heads;
};

struct Stage {
  std::string name;
  int tensors;           // 3 for q, k, v; 1 for the output
  int64_t token_stride;  // heads * D of the tensor side
  int64_t tokens;        // of the tensor side
  std::vector<Chunk> chunks;

  int64_t elements() const { return tensors * tokens * token_stride; }
};

// Chunks by destination or source rank: its heads of my tokens, or its tokens
// of my heads.
Stage ByHeads(const char* name, int tensors, const Shape& shape,
              const SequenceParallelPlan& plan) {
  const int64_t tokens = plan.ranks[0].image_tokens.size;
  Stage stage = {name, tensors, shape.heads * shape.head_dim, tokens, {}};
  for (const RankShare& rank : plan.ranks) {
    stage.chunks.push_back(
        {0, rank.query_heads.begin, tokens, rank.query_heads.size});
  }
  return stage;
}

Stage ByTokens(const char* name, int tensors, const Shape& shape,
               const SequenceParallelPlan& plan) {
  const int64_t heads = plan.ranks[0].query_heads.size;
  Stage stage = {name, tensors, heads * shape.head_dim, shape.image_tokens, {}};
  for (const RankShare& rank : plan.ranks) {
    stage.chunks.push_back(
        {rank.image_tokens.begin, 0, rank.image_tokens.size, heads});
  }
  return stage;
}

enum class Direction { kToChunks, kFromChunks };

// Memory of one repetition, and its jobs.
class StageRun {
 public:
  StageRun(const Stage& stage, int64_t head_dim, Direction direction)
      : direction_(direction),
        tensor_(stage.elements() * 2),
        chunks_(stage.elements() * 2),
        scales_(stage.elements() / head_dim * 4) {
    FillRandom(tensor_, stage.elements() * 2);
    FillRandom(chunks_, stage.elements() * 2);
    FillScales(stage.elements() / head_dim);
    int64_t row = 0;
    for (int i = 0; i < stage.tensors; ++i) {
      char* tensor =
          tensor_.data() + int64_t{2} * i * stage.tokens * stage.token_stride;
      for (const Chunk& chunk : stage.chunks) {
        char* block = tensor + 2 * (chunk.first_row_token * stage.token_stride +
                                    chunk.first_head * head_dim);
        AddJobs(block, stage.token_stride, chunk, row, head_dim);
        row += chunk.tokens * chunk.heads;
      }
    }
  }

  void Launch(const LayoutParams& params, const CudaLaunchOptions& options) {
    if (params.precision == CommunicationPrecision::kNative) {
      Check(CopyHeadsCuda(params, copies_, nullptr, options), "copy");
    } else if (direction_ == Direction::kToChunks) {
      Check(QuantizeHeadsCuda(params, quantizations_, nullptr, options),
            "quantise");
    } else {
      Check(DequantizeHeadsCuda(params, dequantizations_, nullptr, options),
            "dequantise");
    }
  }

 private:
  void FillScales(int64_t rows) {
    const std::vector<float> scales(rows, 0.01f);
    Check(cudaMemcpy(scales_.data(), scales.data(), rows * sizeof(float),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
  }

  void AddJobs(char* block, int64_t token_stride, const Chunk& chunk,
               int64_t row, int64_t head_dim) {
    char* dense = chunks_.data() + 2 * row * head_dim;
    const int64_t dense_stride = chunk.heads * head_dim;
    auto* codes = reinterpret_cast<uint8_t*>(chunks_.data()) + row * head_dim;
    float* scales = reinterpret_cast<float*>(scales_.data()) + row;

    CopyJob copy;
    copy.src = {block, token_stride, 0};
    copy.dst = {dense, dense_stride, 0};
    if (direction_ == Direction::kFromChunks) {
      copy.src = {dense, dense_stride, 0};
      copy.dst = {block, token_stride, 0};
    }
    copy.tokens = chunk.tokens;
    copy.heads = chunk.heads;
    copies_.push_back(copy);

    QuantizeJob quantize;
    quantize.src = {block, token_stride, 0};
    quantize.payload = codes;
    quantize.scales = scales;
    quantize.tokens = chunk.tokens;
    quantize.heads = chunk.heads;
    quantizations_.push_back(quantize);

    DequantizeJob dequantize;
    dequantize.payload = codes;
    dequantize.scales = scales;
    dequantize.dst = {block, token_stride, 0};
    dequantize.tokens = chunk.tokens;
    dequantize.heads = chunk.heads;
    dequantizations_.push_back(dequantize);
  }

  Direction direction_;
  DeviceMemory tensor_;
  DeviceMemory chunks_;
  DeviceMemory scales_;
  std::vector<CopyJob> copies_;
  std::vector<QuantizeJob> quantizations_;
  std::vector<DequantizeJob> dequantizations_;
};

struct Settings {
  int repetitions = 15;
  std::vector<int> max_blocks = {
      CudaLaunchOptions().max_blocks_per_multiprocessor};
};

// Prints a line for each setting and returns the first one's seconds.
double Measure(const Shape& shape, const Stage& stage, Direction direction,
               CommunicationPrecision precision, double copy_rate,
               const Settings& settings) {
  const LayoutParams params = {.dtype = DataType::kBFloat16,
                               .head_dim = shape.head_dim,
                               .precision = precision};
  const bool native = precision == CommunicationPrecision::kNative;
  const int64_t elements = stage.elements();
  const int64_t bytes =
      native ? 4 * elements : 3 * elements + elements / shape.head_dim * 4;
  // Enough sets that none is still in the L2 cache when its turn comes.
  constexpr int64_t kBeyondCache = int64_t{256} << 20;
  const auto sets =
      static_cast<int>(std::clamp<int64_t>(kBeyondCache / bytes + 1, 2, 16));
  std::vector<std::unique_ptr<StageRun>> runs;
  runs.reserve(sets);
  for (int i = 0; i < sets; ++i) {
    runs.push_back(
        std::make_unique<StageRun>(stage, shape.head_dim, direction));
  }
  double first = 0;
  for (const int max_blocks : settings.max_blocks) {
    const CudaLaunchOptions options = {.max_blocks_per_multiprocessor =
                                           max_blocks};
    const double seconds =
        MedianSeconds(settings.repetitions, 2 * sets,
                      [&](int i) { runs[i % sets]->Launch(params, options); });
    if (first == 0) first = seconds;
    const double rate = static_cast<double>(bytes) / seconds;
    std::printf("%-8s %2d  %-9s %-8s %6d %9.1f %9.1f %7.2f %6.3f\n", shape.name,
                shape.world_size, stage.name.c_str(),
                std::string(Name(precision)).c_str(), max_blocks,
                static_cast<double>(bytes) * 1e-6, seconds * 1e6, rate * 1e-12,
                rate / copy_rate);
  }
  return first;
}

void MeasureShape(const Shape& shape, double copy_rate,
                  const Settings& settings) {
  AttentionShape attention;
  attention.dtype = DataType::kBFloat16;
  attention.image_tokens = shape.image_tokens;
  attention.valid_text_tokens = {0};
  attention.num_heads = attention.num_kv_heads = shape.heads;
  attention.head_dim = shape.head_dim;
  const auto plan = MakeSequenceParallelPlan(attention, {}, shape.world_size);
  if (!plan.ok()) {
    std::fprintf(stderr, "%s\n", plan.status().ToString().c_str());
    std::exit(1);
  }
  for (const auto precision :
       {CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
        CommunicationPrecision::kInt8}) {
    const auto measure = [&](const Stage& stage, Direction direction) {
      return Measure(shape, stage, direction, precision, copy_rate, settings);
    };
    double sum =
        measure(ByHeads("qkv_pre", 3, shape, *plan), Direction::kToChunks);
    if (precision != CommunicationPrecision::kNative) {
      sum += measure(ByTokens("qkv_post", 3, shape, *plan),
                     Direction::kFromChunks);
      sum +=
          measure(ByTokens("attn_pre", 1, shape, *plan), Direction::kToChunks);
    }
    sum +=
        measure(ByHeads("attn_post", 1, shape, *plan), Direction::kFromChunks);
    std::printf("%-8s %2d  %-9s %-8s %26.1f\n", shape.name, shape.world_size,
                "sum", std::string(Name(precision)).c_str(), sum * 1e6);
  }
}

int Main(int argc, char** argv) {
  Settings settings;
  CLI::App app("Layout kernels of one rank on one GPU");
  app.add_option("--repetitions", settings.repetitions,
                 "Timed runs of each stage")
      ->capture_default_str();
  app.add_option("--max-blocks-per-multiprocessor", settings.max_blocks,
                 "Launch sizes to compare, comma-separated; 0: a block a tile")
      ->delimiter(',')
      ->capture_default_str();
  std::string only;
  app.add_option("--shape", only, "Only shapes of this name");
  CLI11_PARSE(app, argc, argv);

  cudaDeviceProp device = {};
  Check(cudaGetDeviceProperties(&device, 0), "no GPU");
  const double copy_rate = CopyRate(settings.repetitions);
  std::printf("%s, device copy %.2f TB/s read plus write\n\n", device.name,
              copy_rate * 1e-12);
  std::printf("%-8s %2s  %-9s %-8s %6s %9s %9s %7s %6s\n", "shape", "P",
              "stage", "wire", "blocks", "MB", "us", "TB/s", "share");
  for (const Shape& shape : kShapes) {
    if (only.empty() || only == shape.name) {
      MeasureShape(shape, copy_rate, settings);
    }
  }
  return 0;
}

}  // namespace
}  // namespace ithaca::kernels

int main(int argc, char** argv) { return ithaca::kernels::Main(argc, argv); }
