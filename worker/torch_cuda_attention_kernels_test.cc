#include "worker/torch_cuda_attention_kernels.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/cuda_device.h"

namespace ithaca {
namespace {

constexpr AttentionKernelKind kKernels[] = {AttentionKernelKind::kMath,
                                            AttentionKernelKind::kFlash,
                                            AttentionKernelKind::kCudnn};
constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16,
                               DataType::kBFloat16};

AttentionShape Shape(DataType dtype, int64_t tokens, int64_t heads,
                     int64_t kv_heads, int64_t head_dim) {
  AttentionShape shape;
  shape.dtype = dtype;
  shape.image_tokens = tokens;
  shape.valid_text_tokens = {0};
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  return shape;
}

class TorchCudaAttentionKernelsTest : public testing::Test {
 protected:
  TorchCudaAttentionKernelsTest()
      : device_(CudaDevice::Open(0).value()), kernels_(device_.get()) {}
  ~TorchCudaAttentionKernelsTest() override {
    for (void* memory : memory_) device_->Free(memory);
  }

  const void* OnDevice(const std::string& bytes) {
    void* const memory =
        device_->Allocate(static_cast<int64_t>(bytes.size())).value();
    memory_.push_back(memory);
    EXPECT_TRUE(device_
                    ->CopyFromHost(memory, bytes.data(),
                                   static_cast<int64_t>(bytes.size()))
                    .ok());
    return memory;
  }

  static TokenRows Rows(const void* data, int64_t tokens, int64_t heads,
                        int64_t head_dim) {
    return {data, tokens, heads, heads * head_dim, head_dim};
  }

  absl::StatusOr<std::vector<double>> Attend(
      const AttentionArguments& arguments) {
    const auto result = kernels_.Attend(arguments);
    if (!result.ok()) return result.status();
    const TokenRows& out = result->out;
    EXPECT_EQ(out.tokens, arguments.query.tokens);
    EXPECT_EQ(out.heads, arguments.query.heads);
    EXPECT_EQ(out.head_stride, arguments.head_dim);
    EXPECT_EQ(out.token_stride, out.heads * out.head_stride);
    std::string bytes(static_cast<size_t>(out.tokens * out.token_stride *
                                          ByteSize(arguments.dtype)),
                      '\0');
    const absl::Status copied = device_->CopyToHost(
        bytes.data(), out.data, static_cast<int64_t>(bytes.size()));
    if (!copied.ok()) return copied;
    return oracle::Decode(arguments.dtype, bytes);
  }

  // Dense inputs of one batch element.
  AttentionArguments Arguments(const AttentionShape& shape,
                               const oracle::CallInputs& inputs,
                               AttentionKernelKind kernel) {
    AttentionArguments arguments;
    arguments.dtype = shape.dtype;
    arguments.head_dim = shape.head_dim;
    arguments.softmax_scale = oracle::DefaultScale(shape);
    arguments.query = Rows(OnDevice(inputs.query), shape.query_tokens(),
                           shape.num_heads, shape.head_dim);
    arguments.key = Rows(OnDevice(inputs.key), shape.key_tokens(),
                         shape.num_kv_heads, shape.head_dim);
    arguments.value = Rows(OnDevice(inputs.value), shape.key_tokens(),
                           shape.num_kv_heads, shape.head_dim);
    arguments.kernel = kernel;
    return arguments;
  }

  bool Runs(AttentionKernelKind kernel, const AttentionShape& shape) const {
    return kernels_.Choose(kernel, shape).ok();
  }

  std::unique_ptr<CudaDevice> device_;
  TorchCudaAttentionKernels kernels_;
  std::vector<void*> memory_;
};

TEST_F(TorchCudaAttentionKernelsTest, EveryKernelMatchesTheOracle) {
  int ran = 0;
  for (const DataType dtype : kTypes) {
    for (const int64_t head_dim : {1, 7, 64, 72, 77, 80, 96, 128, 160, 256}) {
      for (const int64_t tokens : {1, 2, 63, 130}) {
        for (const auto& [heads, kv_heads] :
             {std::pair{1, 1}, {3, 3}, {6, 2}, {4, 1}}) {
          const AttentionShape shape =
              Shape(dtype, tokens, heads, kv_heads, head_dim);
          const auto inputs =
              oracle::RandomInputs(shape, static_cast<uint64_t>(++ran));
          const auto expected =
              oracle::Attention(shape, oracle::DefaultScale(shape), inputs);
          for (const AttentionKernelKind kernel : kKernels) {
            if (!Runs(kernel, shape)) continue;
            const auto out = Attend(Arguments(shape, inputs, kernel));
            ASSERT_TRUE(out.ok()) << out.status();
            EXPECT_LE(oracle::RelativeL2Error(*out, expected),
                      oracle::AcceptedError(dtype))
                << Name(kernel) << " " << Name(dtype) << " tokens " << tokens
                << " heads " << heads << "/" << kv_heads << " D " << head_dim;
          }
        }
        for (void* memory : memory_) device_->Free(memory);
        memory_.clear();
      }
    }
  }
}

// Heads of a wider tensor, as a lane's are, and keys longer than queries.
TEST_F(TorchCudaAttentionKernelsTest, TakesStridedRows) {
  constexpr int64_t kQueries = 50;
  constexpr int64_t kWidth = int64_t{8} * 64;
  // Heads 2, 3 and 4 of 8.
  constexpr int64_t kFirst = int64_t{2} * 64;
  constexpr int64_t kPart = int64_t{3} * 64;
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
    AttentionShape wide = Shape(dtype, kQueries, 8, 8, 64);
    wide.text_tokens = 30;
    wide.valid_text_tokens = {30};
    wide.image_queries_only = true;
    const auto inputs = oracle::RandomInputs(wide, 11);
    const auto expected =
        oracle::Attention(wide, oracle::DefaultScale(wide), inputs);
    for (const AttentionKernelKind kernel : kKernels) {
      if (!Runs(kernel, wide)) continue;
      AttentionArguments arguments = Arguments(wide, inputs, kernel);
      for (TokenRows* rows :
           {&arguments.query, &arguments.key, &arguments.value}) {
        rows->data =
            static_cast<const char*>(rows->data) + kFirst * ByteSize(dtype);
        rows->heads = 3;
      }
      const auto out = Attend(arguments);
      ASSERT_TRUE(out.ok()) << out.status();
      std::vector<double> part;
      for (int64_t i = 0; i < kQueries; ++i) {
        const auto row = expected.begin() + i * kWidth + kFirst;
        part.insert(part.end(), row, row + kPart);
      }
      EXPECT_LE(oracle::RelativeL2Error(*out, part),
                oracle::AcceptedError(dtype))
          << Name(kernel);
    }
  }
}

TEST_F(TorchCudaAttentionKernelsTest, NotANumberAndInfinityAreNotLost) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DataType dtype : kTypes) {
    const AttentionShape shape = Shape(dtype, 100, 2, 2, 64);
    for (const AttentionKernelKind kernel : kKernels) {
      if (!Runs(kernel, shape)) continue;
      for (const double bad : {nan, infinity, -infinity}) {
        // A value: its column of every row. A query: its whole row.
        oracle::CallInputs inputs = oracle::RandomInputs(shape, 3);
        std::vector<double> values = oracle::Decode(dtype, inputs.value);
        values[size_t{81} * 64 + 5] = bad;  // token 40, head 1
        inputs.value = oracle::Encode(dtype, values);
        auto out = Attend(Arguments(shape, inputs, kernel));
        ASSERT_TRUE(out.ok()) << out.status();
        for (size_t i = 0; i < out->size(); ++i) {
          const bool touched = i % 128 == 64 + 5;
          EXPECT_EQ(std::isfinite((*out)[i]), !touched)
              << Name(kernel) << " value " << bad << " at " << i;
        }
        inputs = oracle::RandomInputs(shape, 4);
        std::vector<double> queries = oracle::Decode(dtype, inputs.query);
        queries[size_t{15} * 64 + 5] = bad;  // token 7, head 1
        inputs.query = oracle::Encode(dtype, queries);
        out = Attend(Arguments(shape, inputs, kernel));
        ASSERT_TRUE(out.ok()) << out.status();
        for (size_t i = 0; i < out->size(); ++i) {
          const bool touched = i / 64 == 15;
          EXPECT_EQ(std::isfinite((*out)[i]), !touched)
              << Name(kernel) << " query " << bad << " at " << i;
        }
      }
    }
  }
}

TEST_F(TorchCudaAttentionKernelsTest, TheSameCallGivesTheSameBits) {
  const AttentionShape shape = Shape(DataType::kBFloat16, 1500, 4, 4, 128);
  const auto inputs = oracle::RandomInputs(shape, 9);
  for (const AttentionKernelKind kernel : kKernels) {
    if (!Runs(kernel, shape)) continue;
    const AttentionArguments arguments = Arguments(shape, inputs, kernel);
    const auto first = Attend(arguments);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(*Attend(arguments), *first) << Name(kernel);
  }
}

// More logits than MATH holds at once: rows and heads go in pieces.
TEST_F(TorchCudaAttentionKernelsTest, MathInPiecesIsMath) {
  const AttentionShape shape = Shape(DataType::kFloat32, 9000, 2, 1, 8);
  const auto inputs = oracle::RandomInputs(shape, 5);
  const auto out = Attend(Arguments(shape, inputs, AttentionKernelKind::kMath));
  ASSERT_TRUE(out.ok()) << out.status();
  const auto expected =
      oracle::Attention(shape, oracle::DefaultScale(shape), inputs);
  EXPECT_LE(oracle::RelativeL2Error(*out, expected), 1e-5);
}

TEST_F(TorchCudaAttentionKernelsTest, MemoryThatIsNotThereIsSaidBeforehand) {
  AttentionShape shape = Shape(DataType::kBFloat16, 1'000'000'000, 8, 8, 128);
  AttentionOptions options;
  const auto plan = MakeSequenceParallelPlan(shape, options, 1);
  ASSERT_TRUE(plan.ok());
  const absl::Status status =
      kernels_.Reserve(*plan, 0, AttentionKernelKind::kCudnn);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  // The next call is right.
  shape = Shape(DataType::kBFloat16, 1500, 8, 8, 128);
  const auto smaller = MakeSequenceParallelPlan(shape, options, 1);
  ASSERT_TRUE(smaller.ok());
  EXPECT_TRUE(kernels_.Reserve(*smaller, 0, AttentionKernelKind::kCudnn).ok());
  const auto inputs = oracle::RandomInputs(shape, 6);
  const auto out =
      Attend(Arguments(shape, inputs, AttentionKernelKind::kCudnn));
  EXPECT_TRUE(out.ok()) << out.status();
}

}  // namespace
}  // namespace ithaca
