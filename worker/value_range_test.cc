#include "worker/value_range.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TokenRows Rows(const void* data, int64_t tokens, int64_t heads,
               int64_t token_stride, int64_t head_stride) {
  return {data, tokens, heads, token_stride, head_stride};
}

TEST(ValueRangeTest, FindsTheLargestMagnitudeOfFloat32) {
  const std::vector<float> data = {1, -7, 2, 3};
  EXPECT_EQ(
      AbsoluteMaximum(DataType::kFloat32, 2, Rows(data.data(), 1, 2, 4, 2)), 7);
  EXPECT_EQ(
      AbsoluteMaximum(DataType::kFloat32, 2, Rows(data.data(), 0, 2, 4, 2)), 0);
}

TEST(ValueRangeTest, ReadsOnlyTheRows) {
  // Two tokens of two heads of D = 1, the second column and every third
  // number being somebody else's.
  const std::vector<float> data = {1, 99, 2, 99, 3, 99, 4, 99};
  EXPECT_EQ(
      AbsoluteMaximum(DataType::kFloat32, 1, Rows(data.data(), 2, 2, 4, 2)), 4);
  // One head seen as five.
  EXPECT_EQ(
      AbsoluteMaximum(DataType::kFloat32, 1, Rows(data.data(), 2, 5, 4, 0)), 3);
}

TEST(ValueRangeTest, DecodesSixteenBitMagnitudes) {
  struct Case {
    uint16_t bits;
    float value;
  };
  for (const Case& c :
       {Case{0x3c00, 1.0F}, Case{0xc400, 4.0F}, Case{0x7bff, 65504.0F},
        Case{0x0001, 5.9604645e-8F}, Case{0x83ff, 6.097555e-5F},
        Case{0x0400, 6.1035156e-5F}, Case{0xfc00, kInfinity}}) {
    EXPECT_EQ(AbsoluteMaximum(DataType::kFloat16, 1, Rows(&c.bits, 1, 1, 1, 1)),
              c.value);
  }
  const uint16_t half_nan = 0x7e00;
  EXPECT_TRUE(std::isnan(
      AbsoluteMaximum(DataType::kFloat16, 1, Rows(&half_nan, 1, 1, 1, 1))));
  const uint16_t minus_two = 0xc000;
  EXPECT_EQ(
      AbsoluteMaximum(DataType::kBFloat16, 1, Rows(&minus_two, 1, 1, 1, 1)), 2);
  const uint16_t bfloat_nan = 0xffc0;
  EXPECT_TRUE(std::isnan(
      AbsoluteMaximum(DataType::kBFloat16, 1, Rows(&bfloat_nan, 1, 1, 1, 1))));
}

TEST(ValueRangeTest, TellsWhetherAttentionCanOverflow) {
  auto stays_finite = [](float query, float key, float value, double scale) {
    AttentionArguments arguments;
    arguments.head_dim = 1;
    arguments.softmax_scale = scale;
    arguments.query = Rows(&query, 1, 1, 1, 1);
    arguments.key = Rows(&key, 1, 1, 1, 1);
    arguments.value = Rows(&value, 1, 1, 1, 1);
    return AttentionStaysFinite(arguments);
  };
  EXPECT_TRUE(stays_finite(1, 1, 1, 1));
  EXPECT_TRUE(stays_finite(1e15F, -1e15F, 3e38F, 1e-9));
  EXPECT_FALSE(stays_finite(1e20F, 1e20F, 1, 1e-9));
  EXPECT_FALSE(stays_finite(1e15F, 1e15F, 1, 1e10));
  for (float bad : {kInfinity, -kInfinity, kNan}) {
    EXPECT_FALSE(stays_finite(bad, 1, 1, 1));
    EXPECT_FALSE(stays_finite(1, bad, 1, 1));
    EXPECT_FALSE(stays_finite(1, 1, bad, 1));
    EXPECT_FALSE(stays_finite(bad, 0, 1, 1));
  }
}

}  // namespace
}  // namespace ithaca
