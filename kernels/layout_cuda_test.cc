// The GPU half against the CPU half, bit for bit. Skipped without a GPU.

#include "kernels/layout_cuda.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/element.h"
#include "kernels/layout.h"
#include "kernels/layout_cpu.h"

namespace ithaca::kernels {
namespace {

constexpr DataType kDataTypes[] = {DataType::kFloat32, DataType::kFloat16,
                                   DataType::kBFloat16};
constexpr CommunicationPrecision kPrecisions[] = {
    CommunicationPrecision::kFp8E4m3, CommunicationPrecision::kInt8};

bool HasGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

#define ASSERT_CUDA(expression) ASSERT_EQ(expression, cudaSuccess)

// Bytes on the device, exactly as many as asked for, so that compute-sanitizer
// sees an access past them.
class DeviceBytes {
 public:
  explicit DeviceBytes(const std::vector<uint8_t>& bytes)
      : DeviceBytes(static_cast<int64_t>(bytes.size())) {
    EXPECT_EQ(
        cudaMemcpy(memory_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
        cudaSuccess);
  }
  explicit DeviceBytes(int64_t size) : size_(size) {
    EXPECT_EQ(cudaMalloc(&memory_, size > 0 ? size : 1), cudaSuccess);
  }
  ~DeviceBytes() { cudaFree(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  uint8_t* data() const { return static_cast<uint8_t*>(memory_); }

  std::vector<uint8_t> ToHost() const {
    std::vector<uint8_t> bytes(size_);
    EXPECT_EQ(cudaMemcpy(bytes.data(), memory_, size_, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return bytes;
  }

 private:
  void* memory_ = nullptr;
  int64_t size_ = 0;
};

// Elements of a dtype by the kind of their row of 64: ordinary, zero, any bits
// at all (NaN and infinity among them), tiny, huge.
std::vector<uint8_t> RandomTensor(DataType dtype, int64_t elements,
                                  uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const int64_t size = ByteSize(dtype);
  std::vector<uint8_t> bytes(elements * size);
  int kind = 0;
  for (int64_t i = 0; i < elements; ++i) {
    if (i % 64 == 0) kind = static_cast<int>(random() % 12);
    float value = normal(random);
    if (kind == 0 || i % 16 == 3) value = i % 2 == 0 ? 0.0f : -0.0f;
    if (kind == 1) value *= 0x1p-130f;
    if (kind == 2) value *= 0x1p-14f;
    if (kind == 3) value *= 0x1p120f;
    if (kind == 4) value *= 0x1p13f;
    uint32_t bits = std::bit_cast<uint32_t>(value);
    if (dtype == DataType::kFloat16) {
      bits = Element<DataType::kFloat16>::Round(value);
    } else if (dtype == DataType::kBFloat16) {
      bits = Element<DataType::kBFloat16>::Round(value);
    }
    if (kind == 5) bits = static_cast<uint32_t>(random());
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

// One block of heads inside a tensor of more.
struct Block {
  int64_t batch = 1;
  int64_t tokens = 1;
  int64_t heads = 1;
  int64_t head_dim = 1;
  int64_t extra = 0;  // elements between a token's block and the next token's
  int64_t first = 0;  // elements before the block

  int64_t token_stride() const { return heads * head_dim + extra; }
  int64_t batch_stride() const { return tokens * token_stride() + extra; }
  int64_t elements() const { return first + batch * batch_stride(); }
  int64_t rows() const { return batch * tokens * heads; }
  template <typename T>
  HeadBlock<T> At(T* base, DataType dtype) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return {static_cast<Byte*>(base) + first * ByteSize(dtype), token_stride(),
            batch_stride()};
  }
};

template <typename Job>
Job JobOf(const Block& block) {
  Job job;
  job.batch = block.batch;
  job.tokens = block.tokens;
  job.heads = block.heads;
  return job;
}

class LayoutCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU";
  }
};

void CheckCopy(DataType dtype, const Block& from, const Block& to,
               const CudaLaunchOptions& options = {}) {
  const LayoutParams params = {.dtype = dtype, .head_dim = from.head_dim};
  const auto src = RandomTensor(dtype, from.elements(), 1);
  std::vector<uint8_t> expected(to.elements() * ByteSize(dtype), 0xa5);
  const DeviceBytes device_src(src);
  const DeviceBytes device_dst(expected);

  auto job = JobOf<CopyJob>(from);
  job.src = from.At<const void>(src.data(), dtype);
  job.dst = to.At<void>(expected.data(), dtype);
  CopyHeadsCpu(params, {&job, 1});
  job.src = from.At<const void>(device_src.data(), dtype);
  job.dst = to.At<void>(device_dst.data(), dtype);
  ASSERT_CUDA(CopyHeadsCuda(params, {&job, 1}, nullptr, options));
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_EQ(device_dst.ToHost(), expected)
      << Name(dtype) << " " << from.batch << " " << from.tokens << " "
      << from.heads << " " << from.head_dim;
}

TEST_F(LayoutCudaTest, CopiesEveryHeadDim) {
  for (const DataType dtype : kDataTypes) {
    for (int64_t head_dim = 1; head_dim <= 256; ++head_dim) {
      const Block dense = {
          .batch = 2, .tokens = 9, .heads = 3, .head_dim = head_dim};
      Block wide = dense;
      wide.extra = 2 * head_dim;
      wide.first = head_dim;
      CheckCopy(dtype, wide, dense);
      CheckCopy(dtype, dense, wide);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(LayoutCudaTest, CopiesFromAndToAnyAlignment) {
  for (const DataType dtype : kDataTypes) {
    for (int64_t first = 0; first < 9; ++first) {
      for (const int64_t extra : {0, 1, 2, 8}) {
        const Block from = {.batch = 2,
                            .tokens = 700,
                            .heads = 2,
                            .head_dim = 24,
                            .extra = extra,
                            .first = first};
        const Block to = {
            .batch = 2, .tokens = 700, .heads = 2, .head_dim = 24};
        CheckCopy(dtype, from, to);
        CheckCopy(dtype, to, from);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LayoutCudaTest, FewBlocksWorkThroughManyTiles) {
  const Block from = {
      .tokens = 20000, .heads = 3, .head_dim = 128, .extra = 128};
  const Block to = {.tokens = 20000, .heads = 3, .head_dim = 128};
  CheckCopy(DataType::kBFloat16, from, to,
            {.max_blocks_per_multiprocessor = 1});
}

// More jobs than one launch holds, of different sizes, some empty.
TEST_F(LayoutCudaTest, RunsAnyNumberOfJobs) {
  constexpr int64_t kJobs = 150;
  constexpr int64_t kHeadDim = 40;
  const LayoutParams params = {.dtype = DataType::kBFloat16,
                               .head_dim = kHeadDim};
  int64_t elements = 0;
  std::vector<CopyJob> jobs(kJobs);
  std::vector<int64_t> starts(kJobs);
  for (int64_t i = 0; i < kJobs; ++i) {
    jobs[i].tokens = i * 37 % 101;
    jobs[i].heads = i % 4;
    jobs[i].src.token_stride = jobs[i].dst.token_stride =
        jobs[i].heads * kHeadDim;
    starts[i] = elements;
    elements += jobs[i].tokens * jobs[i].heads * kHeadDim;
  }
  const auto src = RandomTensor(params.dtype, elements, 2);
  const DeviceBytes device_src(src);
  const DeviceBytes device_dst(std::vector<uint8_t>(src.size(), 0));
  for (int64_t i = 0; i < kJobs; ++i) {
    jobs[i].src.base = device_src.data() + 2 * starts[i];
    jobs[i].dst.base = device_dst.data() + 2 * starts[i];
  }
  ASSERT_CUDA(CopyHeadsCuda(params, jobs, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(device_dst.ToHost(), src);
  ASSERT_CUDA(CopyHeadsCuda(params, {}, nullptr));
}

void CheckQuantize(DataType dtype, CommunicationPrecision precision,
                   const Block& block, int64_t payload_offset = 0,
                   const CudaLaunchOptions& options = {}) {
  const LayoutParams params = {
      .dtype = dtype, .head_dim = block.head_dim, .precision = precision};
  const auto src = RandomTensor(dtype, block.elements(), 3);
  const int64_t codes = payload_offset + block.rows() * block.head_dim;
  std::vector<uint8_t> payload(codes, 0xa5);
  std::vector<uint8_t> scales(block.rows() * sizeof(float), 0xa5);
  std::vector<uint8_t> back(src.size(), 0xa5);
  const DeviceBytes device_src(src);
  const DeviceBytes device_payload(payload);
  const DeviceBytes device_scales(scales);
  const DeviceBytes device_back(back);

  auto quantize = JobOf<QuantizeJob>(block);
  quantize.src = block.At<const void>(src.data(), dtype);
  quantize.payload = payload.data() + payload_offset;
  quantize.scales = reinterpret_cast<float*>(scales.data());
  QuantizeHeadsCpu(params, {&quantize, 1});
  quantize.src = block.At<const void>(device_src.data(), dtype);
  quantize.payload = device_payload.data() + payload_offset;
  quantize.scales = reinterpret_cast<float*>(device_scales.data());
  ASSERT_CUDA(QuantizeHeadsCuda(params, {&quantize, 1}, nullptr, options));
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_EQ(device_scales.ToHost(), scales)
      << Name(dtype) << " " << Name(precision) << " " << block.head_dim;
  ASSERT_EQ(device_payload.ToHost(), payload)
      << Name(dtype) << " " << Name(precision) << " " << block.head_dim;

  auto dequantize = JobOf<DequantizeJob>(block);
  dequantize.payload = payload.data() + payload_offset;
  dequantize.scales = reinterpret_cast<float*>(scales.data());
  dequantize.dst = block.At<void>(back.data(), dtype);
  DequantizeHeadsCpu(params, {&dequantize, 1});
  dequantize.payload = device_payload.data() + payload_offset;
  dequantize.scales = reinterpret_cast<float*>(device_scales.data());
  dequantize.dst = block.At<void>(device_back.data(), dtype);
  ASSERT_CUDA(DequantizeHeadsCuda(params, {&dequantize, 1}, nullptr, options));
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_EQ(device_back.ToHost(), back)
      << Name(dtype) << " " << Name(precision) << " " << block.head_dim;
}

TEST_F(LayoutCudaTest, QuantizesEveryHeadDimLikeTheCpu) {
  for (const DataType dtype : kDataTypes) {
    for (const CommunicationPrecision precision : kPrecisions) {
      for (int64_t head_dim = 1; head_dim <= 256; ++head_dim) {
        CheckQuantize(dtype, precision,
                      {.batch = 2,
                       .tokens = 61,
                       .heads = 3,
                       .head_dim = head_dim,
                       .extra = head_dim});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LayoutCudaTest, QuantizesFromAnyAlignment) {
  for (const DataType dtype : kDataTypes) {
    for (const CommunicationPrecision precision : kPrecisions) {
      for (int64_t offset = 1; offset < 9; ++offset) {
        const Block block = {.tokens = 33,
                             .heads = 2,
                             .head_dim = 64,
                             .extra = offset % 2,
                             .first = offset};
        CheckQuantize(dtype, precision, block);
        CheckQuantize(dtype, precision,
                      {.tokens = 33, .heads = 2, .head_dim = 64}, offset);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(LayoutCudaTest, QuantizesLargeTensorsLikeTheCpu) {
  for (const DataType dtype : kDataTypes) {
    for (const CommunicationPrecision precision : kPrecisions) {
      for (const int64_t head_dim : {64, 72, 128}) {
        const Block block = {.tokens = 3001, .heads = 5, .head_dim = head_dim};
        CheckQuantize(dtype, precision, block);
        CheckQuantize(dtype, precision, block, 0,
                      {.max_blocks_per_multiprocessor = 1});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Aligned and unaligned jobs together: both kinds of kernel in one call.
TEST_F(LayoutCudaTest, RunsWideAndNarrowJobsTogether) {
  const LayoutParams params = {.dtype = DataType::kBFloat16,
                               .head_dim = 64,
                               .precision = CommunicationPrecision::kInt8};
  constexpr int64_t kRows = 100;
  const auto src = RandomTensor(params.dtype, 2 * kRows * 64 + 1, 4);
  const DeviceBytes device_src(src);
  std::vector<uint8_t> payload(2 * kRows * 64, 0);
  std::vector<uint8_t> scales(2 * kRows * sizeof(float), 0);
  const DeviceBytes device_payload(payload);
  const DeviceBytes device_scales(scales);
  const auto jobs_on = [&](const uint8_t* from, uint8_t* codes,
                           uint8_t* floats) {
    std::vector<QuantizeJob> jobs(2);
    for (int64_t i = 0; i < 2; ++i) {
      // The second job is one element off.
      jobs[i].src = {from + 2 * i * (kRows * 64 + 1), 64, 0};
      jobs[i].payload = codes + i * kRows * 64;
      jobs[i].scales = reinterpret_cast<float*>(floats) + i * kRows;
      jobs[i].tokens = kRows;
      jobs[i].heads = 1;
    }
    return jobs;
  };
  QuantizeHeadsCpu(params, jobs_on(src.data(), payload.data(), scales.data()));
  ASSERT_CUDA(QuantizeHeadsCuda(
      params,
      jobs_on(device_src.data(), device_payload.data(), device_scales.data()),
      nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  EXPECT_EQ(device_payload.ToHost(), payload);
  EXPECT_EQ(device_scales.ToHost(), scales);
}

// The value part of a fused [tokens, 3, 56, 128] tensor: its last elements are
// past what 31 bits count.
TEST_F(LayoutCudaTest, OffsetsArePast32Bits) {
  constexpr int64_t kTokens = 99866;
  constexpr int64_t kRun = int64_t{56} * 128;
  constexpr int64_t kSource = kTokens * 3 * kRun * 2;
  constexpr int64_t kDestination = kTokens * kRun * 2;
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  if (free_bytes < size_t{kSource + kDestination} + (size_t{1} << 28)) {
    GTEST_SKIP() << "needs 6 GB of GPU memory";
  }
  const DeviceBytes src(kSource);
  const DeviceBytes dst(kDestination);
  ASSERT_CUDA(cudaMemset(src.data(), 0x11, kSource));
  ASSERT_CUDA(cudaMemset(dst.data(), 0x22, kDestination));
  const auto last = RandomTensor(DataType::kBFloat16, kRun, 5);
  ASSERT_CUDA(cudaMemcpy(src.data() + kSource - kRun * 2, last.data(),
                         last.size(), cudaMemcpyHostToDevice));
  CopyJob job;
  job.src = {src.data() + 2 * kRun * 2, 3 * kRun, 0};
  job.dst = {dst.data(), kRun, 0};
  job.tokens = kTokens;
  job.heads = 56;
  ASSERT_CUDA(CopyHeadsCuda({.dtype = DataType::kBFloat16, .head_dim = 128},
                            {&job, 1}, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  std::vector<uint8_t> copied(2 * kRun * 2);
  ASSERT_CUDA(cudaMemcpy(copied.data(),
                         dst.data() + kDestination - 2 * kRun * 2,
                         copied.size(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(std::vector<uint8_t>(copied.begin(), copied.begin() + kRun * 2),
            std::vector<uint8_t>(kRun * 2, 0x11));
  EXPECT_EQ(std::vector<uint8_t>(copied.begin() + kRun * 2, copied.end()),
            last);
}

}  // namespace
}  // namespace ithaca::kernels
