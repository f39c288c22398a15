#include "client/element_conversion.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace ithaca::client {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(ElementConversionTest, EverySixteenBitPatternSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float from_float16 = Float16ToFloat(half);
    if (std::isnan(from_float16)) {
      EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(from_float16))));
    } else {
      EXPECT_EQ(FloatToFloat16(from_float16), half);
    }
    const float from_bfloat16 = BFloat16ToFloat(half);
    if (std::isnan(from_bfloat16)) {
      EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(from_bfloat16))));
    } else {
      EXPECT_EQ(FloatToBFloat16(from_bfloat16), half);
    }
  }
}

TEST(ElementConversionTest, KnownValues) {
  EXPECT_EQ(Float16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(Float16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(Float16ToFloat(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(Float16ToFloat(0xfc00), -kInfinity);
  EXPECT_EQ(BFloat16ToFloat(0x3f80), 1.0f);
  EXPECT_EQ(BFloat16ToFloat(0xc040), -3.0f);
}

TEST(ElementConversionTest, NarrowingRoundsToNearestTiesToEven) {
  EXPECT_EQ(FloatToFloat16(1.0f + std::ldexp(1.0f, -11)), 0x3c00);  // tie
  EXPECT_EQ(FloatToFloat16(1.0f + std::ldexp(3.0f, -11)), 0x3c02);  // tie
  EXPECT_EQ(FloatToFloat16(std::nextafter(1.0f + std::ldexp(1.0f, -11), 2.f)),
            0x3c01);
  EXPECT_EQ(FloatToFloat16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToFloat16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToFloat16(std::ldexp(1.0f, -25)), 0x0000);  // tie
  EXPECT_EQ(FloatToFloat16(std::ldexp(3.0f, -25)), 0x0002);  // tie
  EXPECT_EQ(FloatToFloat16(std::nextafter(std::ldexp(1.0f, -14), 0.f)), 0x0400);
  EXPECT_EQ(FloatToBFloat16(1.0f + std::ldexp(1.0f, -8)), 0x3f80);  // tie
  EXPECT_EQ(FloatToBFloat16(1.0f + std::ldexp(3.0f, -8)), 0x3f82);  // tie
  EXPECT_EQ(FloatToBFloat16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(ElementConversionTest, InfinitiesAndNansStayWhatTheyAre) {
  // A NaN whose payload lies only in the bits that are cut away.
  const auto nan = std::bit_cast<float>(0x7f800001u);
  EXPECT_TRUE(std::isnan(BFloat16ToFloat(FloatToBFloat16(nan))));
  EXPECT_TRUE(std::isnan(Float16ToFloat(FloatToFloat16(nan))));
  EXPECT_EQ(Float16ToFloat(FloatToFloat16(-kInfinity)), -kInfinity);
  EXPECT_EQ(BFloat16ToFloat(FloatToBFloat16(kInfinity)), kInfinity);
}

TEST(ElementConversionTest, RowsWidenToWhatWasNarrowed) {
  const std::vector<float> numbers = {0.0f, -1.5f, 3.25f, 1024.0f, -0.0f};
  for (const v1::DataType dtype :
       {v1::DATA_TYPE_FLOAT32, v1::DATA_TYPE_FLOAT16, v1::DATA_TYPE_BFLOAT16}) {
    std::vector<std::byte> bytes(numbers.size() * 4);
    std::vector<double> back(numbers.size());
    Narrow(dtype, numbers, bytes);
    Widen(dtype, bytes, back);
    for (size_t i = 0; i < numbers.size(); ++i) {
      EXPECT_EQ(back[i], numbers[i]);
    }
  }
}

}  // namespace
}  // namespace ithaca::client
