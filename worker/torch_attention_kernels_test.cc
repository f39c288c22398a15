#include "worker/torch_attention_kernels.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr AttentionKernelKind kKernels[] = {AttentionKernelKind::kMath,
                                            AttentionKernelKind::kFlash};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16,
                               DataType::kBFloat16};

// `queries` rows attend to `keys` rows.
AttentionShape Shape(DataType dtype, int64_t queries, int64_t keys,
                     int64_t heads, int64_t kv_heads, int64_t head_dim) {
  AttentionShape shape;
  shape.dtype = dtype;
  shape.image_tokens = queries;
  shape.text_tokens = keys - queries;
  shape.valid_text_tokens = {keys - queries};
  shape.image_queries_only = true;
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = head_dim;
  return shape;
}

TokenRows Dense(const std::string& bytes, int64_t tokens, int64_t heads,
                int64_t head_dim) {
  return {bytes.data(), tokens, heads, heads * head_dim, head_dim};
}

AttentionArguments Arguments(const AttentionShape& shape,
                             const oracle::CallInputs& inputs,
                             AttentionKernelKind kernel) {
  AttentionArguments arguments;
  arguments.dtype = shape.dtype;
  arguments.head_dim = shape.head_dim;
  arguments.softmax_scale = oracle::DefaultScale(shape);
  arguments.query = Dense(inputs.query, shape.query_tokens(), shape.num_heads,
                          shape.head_dim);
  arguments.key =
      Dense(inputs.key, shape.key_tokens(), shape.num_kv_heads, shape.head_dim);
  arguments.value = Dense(inputs.value, shape.key_tokens(), shape.num_kv_heads,
                          shape.head_dim);
  arguments.kernel = kernel;
  return arguments;
}

std::vector<double> Attend(const AttentionArguments& arguments) {
  std::unique_ptr<AttentionKernels> kernels = MakeTorchAttentionKernels({1});
  absl::StatusOr<AttentionResult> result = kernels->Attend(arguments);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return {};
  const TokenRows& out = result->out;
  EXPECT_EQ(out.tokens, arguments.query.tokens);
  EXPECT_EQ(out.heads, arguments.query.heads);
  EXPECT_EQ(out.head_stride, arguments.head_dim);
  EXPECT_EQ(out.token_stride, out.heads * arguments.head_dim);
  const size_t bytes = static_cast<size_t>(out.tokens * out.token_stride *
                                           ByteSize(arguments.dtype));
  return oracle::Decode(
      arguments.dtype,
      std::string_view(static_cast<const char*>(out.data), bytes));
}

void ExpectAccurate(const AttentionShape& shape, AttentionKernelKind kernel) {
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 7);
  const double error = oracle::RelativeL2Error(
      Attend(Arguments(shape, inputs, kernel)),
      oracle::Attention(shape, oracle::DefaultScale(shape), inputs));
  EXPECT_LE(error, oracle::AcceptedError(shape.dtype))
      << Name(kernel) << " " << Name(shape.dtype) << " D " << shape.head_dim
      << " queries " << shape.query_tokens() << " keys " << shape.key_tokens()
      << " heads " << shape.num_heads << "/" << shape.num_kv_heads;
}

TEST(TorchAttentionKernelsTest, TakesEveryHeadDim) {
  for (AttentionKernelKind kernel : kKernels) {
    for (DataType dtype : kTypes) {
      for (int64_t head_dim = 1; head_dim <= 256; ++head_dim) {
        ExpectAccurate(Shape(dtype, 5, 37, 2, 2, head_dim), kernel);
      }
    }
  }
}

TEST(TorchAttentionKernelsTest, TakesEverySizeAndGrouping) {
  for (AttentionKernelKind kernel : kKernels) {
    for (DataType dtype : kTypes) {
      for (int64_t queries : {1, 2, 33, 130}) {
        for (int64_t more_keys : {0, 1, 15, 600}) {
          ExpectAccurate(Shape(dtype, queries, queries + more_keys, 6, 3, 40),
                         kernel);
        }
      }
      ExpectAccurate(Shape(dtype, 9, 9, 8, 1, 64), kernel);
      ExpectAccurate(Shape(dtype, 9, 9, 7, 7, 64), kernel);
    }
  }
}

TEST(TorchAttentionKernelsTest, BlocksOfQueriesChangeNothing) {
  // More logits than one block holds.
  ExpectAccurate(Shape(DataType::kFloat32, 40, 500000, 1, 1, 1),
                 AttentionKernelKind::kMath);
}

TEST(TorchAttentionKernelsTest, ReadsStridedRows) {
  // Heads 1 and 2 of four, tokens 3 to 7 of nine, as key, query and value.
  const AttentionShape whole = Shape(DataType::kBFloat16, 9, 9, 4, 4, 16);
  const oracle::CallInputs inputs = oracle::RandomInputs(whole, 3);
  const AttentionShape part = Shape(DataType::kBFloat16, 5, 5, 2, 2, 16);
  auto cut = [](const std::string& bytes) {
    std::string out;
    for (size_t token = 3; token < 8; ++token) {
      out += bytes.substr((token * 4 + 1) * 32, 64);
    }
    return out;
  };
  const oracle::CallInputs dense = {cut(inputs.query), cut(inputs.key),
                                    cut(inputs.value)};
  for (AttentionKernelKind kernel : kKernels) {
    AttentionArguments strided = Arguments(part, dense, kernel);
    const size_t first = size_t{3 * 4 + 1} * 32;
    strided.query = {inputs.query.data() + first, 5, 2, 64, 16};
    strided.key = {inputs.key.data() + first, 5, 2, 64, 16};
    strided.value = {inputs.value.data() + first, 5, 2, 64, 16};
    EXPECT_EQ(Attend(strided), Attend(Arguments(part, dense, kernel)));
  }
}

TEST(TorchAttentionKernelsTest, GivesTheSameBitsTwice) {
  const AttentionShape shape = Shape(DataType::kFloat16, 60, 700, 4, 2, 72);
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 5);
  for (AttentionKernelKind kernel : kKernels) {
    const AttentionArguments arguments = Arguments(shape, inputs, kernel);
    EXPECT_EQ(Attend(arguments), Attend(arguments));
  }
}

TEST(TorchAttentionKernelsTest, PropagatesWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (AttentionKernelKind kernel : kKernels) {
    for (DataType dtype : kTypes) {
      for (int64_t keys : {1, 2, 9, 40}) {
        for (double bad : {infinity, -infinity, std::nan("")}) {
          for (int tensor = 0; tensor < 3; ++tensor) {
            const AttentionShape shape = Shape(dtype, 1, keys, 2, 2, 24);
            oracle::CallInputs inputs = oracle::RandomInputs(shape, 11);
            std::string& bytes = tensor == 0   ? inputs.query
                                 : tensor == 1 ? inputs.key
                                               : inputs.value;
            std::vector<double> values = oracle::Decode(dtype, bytes);
            values[5] = bad;  // head 0
            bytes = oracle::Encode(dtype, values);
            const std::vector<double> out =
                Attend(Arguments(shape, inputs, kernel));
            const std::vector<double> expected =
                oracle::Attention(shape, oracle::DefaultScale(shape), inputs);
            ASSERT_EQ(out.size(), expected.size());
            for (size_t i = 0; i < out.size(); ++i) {
              EXPECT_EQ(std::isfinite(out[i]), std::isfinite(expected[i]))
                  << Name(kernel) << " " << Name(dtype) << " tensor " << tensor
                  << " value " << bad << " keys " << keys << " at " << i;
            }
          }
        }
      }
    }
  }
}

TEST(TorchAttentionKernelsTest, LogitsBeyondFloat16StayRight) {
  const AttentionShape shape = Shape(DataType::kFloat16, 2, 2, 1, 1, 64);
  const oracle::CallInputs inputs = {
      oracle::FillQuery(shape, [](auto...) { return 120; }),
      oracle::FillKey(shape, [](auto, auto t, auto, auto) { return 120 - t; }),
      oracle::FillKey(shape,
                      [](auto, auto t, auto, auto) { return 3 + 4 * t; })};
  for (AttentionKernelKind kernel : kKernels) {
    EXPECT_THAT(Attend(Arguments(shape, inputs, kernel)), testing::Each(3.0));
  }
}

TEST(TorchAttentionKernelsTest, Float32IsNotCutDown) {
  const AttentionShape shape = Shape(DataType::kFloat32, 2, 2, 1, 1, 8);
  const oracle::CallInputs inputs =
      oracle::ZeroInputs(shape, [](auto, auto t, auto, auto) {
        return t == 0 ? 1.0 : 1.0 + std::ldexp(1.0, -20);
      });
  for (AttentionKernelKind kernel : kKernels) {
    for (double out : Attend(Arguments(shape, inputs, kernel))) {
      EXPECT_NEAR(out, 1.0 + std::ldexp(1.0, -21), 1.2e-7);
    }
  }
}

TEST(TorchAttentionKernelsTest, ChoosesAndRefuses) {
  std::unique_ptr<AttentionKernels> kernels = MakeTorchAttentionKernels();
  const AttentionShape shape = Shape(DataType::kBFloat16, 4, 4, 2, 2, 72);
  EXPECT_EQ(*kernels->Choose(AttentionKernelKind::kAuto, shape),
            AttentionKernelKind::kFlash);
  for (AttentionKernelKind kernel : kKernels) {
    EXPECT_EQ(*kernels->Choose(kernel, shape), kernel);
  }
  const absl::Status refused =
      kernels->Choose(AttentionKernelKind::kCudnn, shape).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cudnn"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("cpu"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("head_dim 72"));
  EXPECT_THAT(kernels->Available(), ElementsAre(AttentionKernelKind::kMath,
                                                AttentionKernelKind::kFlash));
}

TEST(TorchAttentionKernelsTest, AnInfinityChangesNoBitOfOtherHeads) {
  for (DataType dtype : kTypes) {
    const AttentionShape shape = Shape(dtype, 33, 70, 4, 2, 40);
    const oracle::CallInputs inputs = oracle::RandomInputs(shape, 3);
    AttentionArguments arguments =
        Arguments(shape, inputs, AttentionKernelKind::kFlash);
    const std::vector<double> finite = Attend(arguments);
    // Of the second key/value head, which the last two heads attend to.
    std::string value = inputs.value;
    const std::string infinity = oracle::Encode(dtype, {kInfinity});
    value.replace(infinity.size() * (5 * 2 + 1) * 40, infinity.size(),
                  infinity);
    arguments.value = Dense(value, 70, 2, 40);
    const std::vector<double> out = Attend(arguments);
    ASSERT_EQ(out.size(), finite.size());
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t head = i / 40 % 4;
      if (head < 2) {
        ASSERT_EQ(out[i], finite[i]) << Name(dtype) << " element " << i;
      } else if (i % 40 == 0) {
        ASSERT_EQ(out[i], kInfinity) << Name(dtype) << " element " << i;
      } else {
        ASSERT_TRUE(std::isfinite(out[i])) << Name(dtype) << " element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace ithaca
