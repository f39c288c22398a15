// Layout and quantisation on the CPU: bytes read plus bytes written a second,
// beside memcpy of the same tensor. One rank of P = 4 of FLUX: 1,024 image
// tokens, 24 heads of 128, packed for 4 destinations.

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/attention_call.h"
#include "core/data_type.h"
#include "kernels/layout.h"
#include "kernels/layout_cpu.h"

namespace ithaca::kernels {
namespace {

constexpr int64_t kTokens = 1024;
constexpr int64_t kHeads = 24;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kRanks = 4;
constexpr int64_t kHeadsPerRank = kHeads / kRanks;
constexpr int64_t kRow = kHeads * kHeadDim;
constexpr int64_t kElements = kTokens * kRow;

// Bits of ordinary values, no two rows alike.
std::vector<uint8_t> RandomTensor(DataType dtype) {
  std::vector<uint8_t> bytes(kElements * ByteSize(dtype));
  uint64_t state = 1;
  for (size_t i = 0; i < bytes.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    // The top byte of each element: magnitudes near 1.
    const bool top = (i + 1) % ByteSize(dtype) == 0;
    bytes[i] =
        static_cast<uint8_t>(top ? 0x3c | (state >> 63 << 7) : state >> 56);
  }
  return bytes;
}

HeadBlock<const void> HeadsOfRank(const std::vector<uint8_t>& tensor,
                                  DataType dtype, int64_t rank) {
  return {tensor.data() + rank * kHeadsPerRank * kHeadDim * ByteSize(dtype),
          kRow, kElements};
}

HeadBlock<void> HeadsOfRank(std::vector<uint8_t>& tensor, DataType dtype,
                            int64_t rank) {
  return {tensor.data() + rank * kHeadsPerRank * kHeadDim * ByteSize(dtype),
          kRow, kElements};
}

LayoutParams Params(DataType dtype, CommunicationPrecision precision) {
  LayoutParams params;
  params.dtype = dtype;
  params.head_dim = kHeadDim;
  params.precision = precision;
  return params;
}

void SetBytes(benchmark::State& state, int64_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * bytes);
}

void BenchmarkMemcpy(benchmark::State& state, DataType dtype) {
  const std::vector<uint8_t> src = RandomTensor(dtype);
  std::vector<uint8_t> dst(src.size());
  for (auto _ : state) {
    std::memcpy(dst.data(), src.data(), src.size());
    benchmark::ClobberMemory();
  }
  SetBytes(state, 2 * static_cast<int64_t>(src.size()));
}

void BenchmarkCopyHeads(benchmark::State& state, DataType dtype) {
  const std::vector<uint8_t> src = RandomTensor(dtype);
  std::vector<uint8_t> dst(src.size());
  std::vector<CopyJob> jobs(kRanks);
  const int64_t chunk = kElements / kRanks;
  for (int64_t r = 0; r < kRanks; ++r) {
    jobs[r].src = HeadsOfRank(src, dtype, r);
    jobs[r].dst = {dst.data() + r * chunk * ByteSize(dtype),
                   kHeadsPerRank * kHeadDim, chunk};
    jobs[r].tokens = kTokens;
    jobs[r].heads = kHeadsPerRank;
  }
  const auto params = Params(dtype, CommunicationPrecision::kNative);
  for (auto _ : state) {
    CopyHeadsCpu(params, jobs);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 2 * static_cast<int64_t>(src.size()));
}

struct QuantizedTensor {
  std::vector<uint8_t> payload = std::vector<uint8_t>(kElements);
  std::vector<float> scales = std::vector<float>(kElements / kHeadDim);

  int64_t bytes() const {
    return static_cast<int64_t>(payload.size() + scales.size() * sizeof(float));
  }
};

std::vector<QuantizeJob> QuantizeJobs(const std::vector<uint8_t>& src,
                                      DataType dtype, QuantizedTensor& to) {
  std::vector<QuantizeJob> jobs(kRanks);
  for (int64_t r = 0; r < kRanks; ++r) {
    jobs[r].src = HeadsOfRank(src, dtype, r);
    jobs[r].payload = to.payload.data() + r * kElements / kRanks;
    jobs[r].scales = to.scales.data() + r * kTokens * kHeadsPerRank;
    jobs[r].tokens = kTokens;
    jobs[r].heads = kHeadsPerRank;
  }
  return jobs;
}

void BenchmarkQuantizeHeads(benchmark::State& state, DataType dtype,
                            CommunicationPrecision precision) {
  const std::vector<uint8_t> src = RandomTensor(dtype);
  QuantizedTensor quantized;
  const auto jobs = QuantizeJobs(src, dtype, quantized);
  const auto params = Params(dtype, precision);
  for (auto _ : state) {
    QuantizeHeadsCpu(params, jobs);
    benchmark::ClobberMemory();
  }
  SetBytes(state, static_cast<int64_t>(src.size()) + quantized.bytes());
}

void BenchmarkDequantizeHeads(benchmark::State& state, DataType dtype,
                              CommunicationPrecision precision) {
  const std::vector<uint8_t> src = RandomTensor(dtype);
  QuantizedTensor quantized;
  const auto params = Params(dtype, precision);
  QuantizeHeadsCpu(params, QuantizeJobs(src, dtype, quantized));
  std::vector<uint8_t> dst(src.size());
  std::vector<DequantizeJob> jobs(kRanks);
  for (int64_t r = 0; r < kRanks; ++r) {
    jobs[r].payload = quantized.payload.data() + r * kElements / kRanks;
    jobs[r].scales = quantized.scales.data() + r * kTokens * kHeadsPerRank;
    jobs[r].dst = HeadsOfRank(dst, dtype, r);
    jobs[r].tokens = kTokens;
    jobs[r].heads = kHeadsPerRank;
  }
  for (auto _ : state) {
    DequantizeHeadsCpu(params, jobs);
    benchmark::ClobberMemory();
  }
  SetBytes(state, static_cast<int64_t>(src.size()) + quantized.bytes());
}

void RegisterAll() {
  for (const DataType dtype :
       {DataType::kBFloat16, DataType::kFloat16, DataType::kFloat32}) {
    const std::string type(Name(dtype));
    benchmark::RegisterBenchmark(("memcpy/" + type).c_str(), BenchmarkMemcpy,
                                 dtype);
    benchmark::RegisterBenchmark(("copy_heads/" + type).c_str(),
                                 BenchmarkCopyHeads, dtype);
    for (const CommunicationPrecision precision :
         {CommunicationPrecision::kFp8E4m3, CommunicationPrecision::kInt8}) {
      const std::string name = type + "/" + std::string(Name(precision));
      benchmark::RegisterBenchmark(("quantize_heads/" + name).c_str(),
                                   BenchmarkQuantizeHeads, dtype, precision);
      benchmark::RegisterBenchmark(("dequantize_heads/" + name).c_str(),
                                   BenchmarkDequantizeHeads, dtype, precision);
    }
  }
}

}  // namespace
}  // namespace ithaca::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  ithaca::kernels::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
