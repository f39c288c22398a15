#include "tests/oracle/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca::oracle {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

AttentionShape Shape(int64_t image_tokens, std::vector<int64_t> valid,
                     int64_t text_tokens, int64_t num_heads,
                     int64_t num_kv_heads, int64_t head_dim) {
  AttentionShape shape;
  shape.batch = static_cast<int64_t>(valid.size());
  shape.image_tokens = image_tokens;
  shape.text_tokens = text_tokens;
  shape.valid_text_tokens = std::move(valid);
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = head_dim;
  return shape;
}

std::vector<double> Attend(const AttentionShape& shape,
                           const CallInputs& inputs) {
  return Attention(shape, DefaultScale(shape), inputs);
}

TEST(AttentionOracleTest, WeighsKeysByTheSoftmaxOfScaledDots) {
  // Logits 2 * {3 * 1, 3 * 0} = {6, 0}; values {64, 0}.
  const AttentionShape shape = Shape(2, {0}, 0, 1, 1, 1);
  const std::string query = Encode(shape.dtype, {3, 0});
  const std::string key = Encode(shape.dtype, {1, 0});
  const std::string value = Encode(shape.dtype, {64, 0});
  const auto out = Attention(shape, 2.0, query, key, value);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_NEAR(out[0], 64 / (1 + std::exp(-6.0)), 1e-12);
  EXPECT_NEAR(out[1], 32, 1e-12);
}

TEST(AttentionOracleTest, ScaleIsThatOfTheCallersHeadDim) {
  const struct {
    int64_t head_dim;
    double expected;
  } cases[] = {{64, 56.371}, {72, 55.568},  {80, 54.834},
               {96, 53.541}, {128, 51.484}, {256, 46.788}};
  for (const auto& [head_dim, expected] : cases) {
    const AttentionShape shape = Shape(2, {0}, 0, 2, 2, head_dim);
    CallInputs inputs;
    inputs.query = FillQuery(
        shape, [](auto, auto, auto, int64_t d) { return d == 0 ? 4.0 : 0.0; });
    inputs.key = FillKey(shape, [](auto, int64_t t, auto, int64_t d) {
      return t == 0 && d == 0 ? 4.0 : 0.0;
    });
    inputs.value = FillKey(
        shape, [](auto, int64_t t, auto, auto) { return t == 0 ? 64.0 : 0.0; });
    EXPECT_NEAR(Attend(shape, inputs)[0], expected, 1e-3) << head_dim;
  }
}

TEST(AttentionOracleTest, PaddedTextHasNoInfluenceInEitherOrder) {
  for (const TokenOrder order :
       {TokenOrder::kTextFirst, TokenOrder::kImageFirst}) {
    AttentionShape shape = Shape(4, {2}, 8, 2, 2, 8);
    shape.order = order;
    const int64_t text = order == TokenOrder::kTextFirst ? 0 : 4;
    for (const double padding : {100.0, std::nan(""), kInfinity}) {
      CallInputs inputs = ZeroInputs(shape, [&](auto, int64_t t, auto, auto) {
        if (t < text || t >= text + 8) return 2.0;
        return t < text + 2 ? 1.0 : padding;
      });
      const auto out = Attend(shape, inputs);
      for (int64_t i = 0; i < 12; ++i) {
        const bool padded = i >= text + 2 && i < text + 8;
        for (int64_t e = i * 16; e < (i + 1) * 16; ++e) {
          EXPECT_NEAR(out[e], padded ? 0.0 : 10.0 / 6, 1e-12) << i;
        }
      }
    }
  }
}

TEST(AttentionOracleTest, EachBatchElementHasItsOwnLength) {
  const AttentionShape shape = Shape(4, {3, 8}, 8, 1, 1, 2);
  const auto out =
      Attend(shape, ZeroInputs(shape, [&](int64_t b, int64_t t, auto, auto) {
               return KeyIsKept(shape, b, t) ? 1.0 : 9.0;
             }));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t i = 0; i < 12; ++i) {
      EXPECT_EQ(out[(b * 12 + i) * 2], b == 0 && i >= 7 ? 0.0 : 1.0);
    }
  }
}

TEST(AttentionOracleTest, QueryHeadsUseTheKvHeadOfTheirGroup) {
  for (const auto& [heads, kv_heads] :
       std::vector<std::pair<int64_t, int64_t>>{{28, 7}, {8, 2}, {6, 6}}) {
    const AttentionShape shape = Shape(3, {0}, 0, heads, kv_heads, 1);
    const auto out = Attend(shape, ZeroInputs(shape, [](auto, auto, int64_t g,
                                                        auto) { return g; }));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv_head = h / (heads / kv_heads);
      EXPECT_NEAR(out[h], static_cast<double>(kv_head), 1e-12);
    }
  }
}

TEST(AttentionOracleTest, ARowWithoutAKeyIsZero) {
  AttentionShape shape = Shape(0, {0, 1}, 1, 1, 1, 2);
  const auto out = Attend(
      shape, ZeroInputs(shape, [](auto, auto, auto, auto) { return 5.0; }));
  EXPECT_THAT(out, ElementsAre(0, 0, 5, 5));
}

TEST(AttentionOracleTest, ImageQueriesAloneSeeTheText) {
  AttentionShape shape = Shape(2, {1}, 2, 1, 1, 1);
  shape.image_queries_only = true;
  shape.order = TokenOrder::kTextFirst;
  // Text 3 and a padded 50, image 6 and 9.
  CallInputs inputs;
  inputs.query = Encode(shape.dtype, {0, 0});
  inputs.key = Encode(shape.dtype, {0, 0, 0, 0});
  inputs.value = Encode(shape.dtype, {3, 50, 6, 9});
  EXPECT_THAT(Attend(shape, inputs), ElementsAre(6, 6));
}

TEST(AttentionOracleTest, PropagatesNanAndInfinityThatAreKept) {
  const AttentionShape shape = Shape(2, {0}, 0, 1, 1, 1);
  const std::string zeros = Encode(shape.dtype, {0, 0});
  EXPECT_THAT(
      Attention(shape, 1, zeros, zeros, Encode(shape.dtype, {kInfinity, 1})),
      Each(kInfinity));
  for (const double out : Attention(shape, 1, zeros, zeros,
                                    Encode(shape.dtype, {std::nan(""), 1})))
    EXPECT_TRUE(std::isnan(out));
  for (const double out : Attention(shape, 1, Encode(shape.dtype, {1, 1}),
                                    Encode(shape.dtype, {0, std::nan("")}),
                                    Encode(shape.dtype, {1, 1})))
    EXPECT_TRUE(std::isnan(out));
}

TEST(AttentionOracleTest, PickAndTagAreExactInEveryDataType) {
  for (const DataType dtype :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    for (const TokenOrder order :
         {TokenOrder::kImageFirst, TokenOrder::kTextFirst}) {
      AttentionShape shape = Shape(5, {2, 3}, 3, 4, 2, 64);
      shape.dtype = dtype;
      shape.order = order;
      const CallInputs inputs =
          PickInputs(shape, [&](int64_t b, int64_t t, int64_t g, int64_t) {
            return Tag(shape, b, t, g);
          });
      const auto out = Attend(shape, inputs);
      // In the dtype: what is left of the other keys (e^-128) rounds away.
      EXPECT_EQ(Encode(DataType::kFloat32, out),
                Encode(DataType::kFloat32, PickTagOutput(shape)));
    }
  }
}

TEST(AttentionOracleTest, PickTagNamesBatchTokenAndHead) {
  AttentionShape shape = Shape(8, {0, 0}, 0, 4, 4, 64);
  const auto out = PickTagOutput(shape);
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 8; ++s) {
      for (int64_t h = 0; h < 4; ++h) {
        EXPECT_EQ(out[((b * 8 + s) * 4 + h) * 64],
                  8 * (4 * b + h) + (s + 1) % 8);
      }
    }
  }
}

TEST(RelativeL2ErrorTest, ComparesNorms) {
  EXPECT_EQ(RelativeL2Error({3, 4}, {3, 4}), 0);
  EXPECT_DOUBLE_EQ(RelativeL2Error({3, 5}, {3, 4}), 0.2);
  EXPECT_EQ(RelativeL2Error({0, 0}, {0, 0}), 0);
  EXPECT_EQ(RelativeL2Error({1, 0}, {0, 0}), kInfinity);
  EXPECT_TRUE(std::isnan(RelativeL2Error({std::nan(""), 0}, {1, 0})));
  EXPECT_TRUE(std::isnan(RelativeL2Error({1, 0}, {kInfinity, 0})));
}

TEST(TensorDataTest, RoundsOnceToNearestEven) {
  const auto round = [](DataType dtype, double value) {
    return Decode(dtype, Encode(dtype, {value}))[0];
  };
  using enum DataType;
  EXPECT_EQ(round(kBFloat16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round(kBFloat16, 1 + 0x1p-8 + 0x1p-30), 1 + 0x1p-7);
  EXPECT_EQ(round(kBFloat16, 1 + 3 * 0x1p-8), 1 + 0x1p-6);
  EXPECT_EQ(round(kFloat16, 1 + 0x1p-11), 1);
  EXPECT_EQ(round(kFloat16, 65519), 65504);
  EXPECT_EQ(round(kFloat16, 65520), kInfinity);
  EXPECT_EQ(round(kFloat16, 0x1p-25), 0);
  EXPECT_EQ(round(kFloat16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(round(kFloat16, -0x1.ff8p-15), -0x1.ff8p-15);
  EXPECT_EQ(round(kFloat32, 1 + 0x1p-24), 1);
  EXPECT_EQ(round(kFloat32, 1 + 0x1p-24 + 0x1p-40), 1 + 0x1p-23);
  for (const DataType dtype : {kFloat32, kFloat16, kBFloat16}) {
    EXPECT_TRUE(std::isnan(round(dtype, std::nan(""))));
    EXPECT_EQ(round(dtype, -kInfinity), -kInfinity);
    EXPECT_TRUE(std::signbit(round(dtype, -0.0)));
  }
}

TEST(TensorDataTest, EncodesWhatItDecodes) {
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16}) {
    for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
      const std::string bytes = {static_cast<char>(bits),
                                 static_cast<char>(bits >> 8)};
      const auto values = Decode(dtype, bytes);
      if (std::isnan(values[0])) continue;
      ASSERT_EQ(Encode(dtype, values), bytes) << bits;
    }
  }
}

// The same numbers as the compiler's own, for float32.
TEST(TensorDataTest, RoundsToFloat32LikeTheCompiler) {
  const AttentionShape shape = Shape(64, {0}, 0, 2, 2, 8);
  const auto values = Decode(DataType::kFloat32, RandomInputs(shape, 3).query);
  for (const double value : values) {
    for (const double product : {value * 1.1, value * 1e-39, value * 1e38}) {
      EXPECT_EQ(
          Decode(DataType::kFloat32, Encode(DataType::kFloat32, {product}))[0],
          static_cast<double>(static_cast<float>(product)));
    }
  }
}

TEST(TensorDataTest, RandomInputsAreNormalAndFollowTheSeed) {
  const AttentionShape shape = Shape(100, {0}, 0, 4, 2, 64);
  const CallInputs inputs = RandomInputs(shape, 7);
  EXPECT_EQ(inputs.query, RandomInputs(shape, 7).query);
  EXPECT_NE(inputs.query, RandomInputs(shape, 8).query);
  EXPECT_NE(inputs.key, inputs.value);
  const auto values = Decode(shape.dtype, inputs.query);
  ASSERT_EQ(static_cast<int64_t>(values.size()), QueryElements(shape));
  double sum = 0;
  double squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 0.05);
  EXPECT_NEAR(squares / count, 1, 0.05);
}

}  // namespace
}  // namespace ithaca::oracle
