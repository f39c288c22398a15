#include "kernels/quantization.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/element.h"

namespace ithaca::kernels {
namespace {

using Fp8 = Codec<CommunicationPrecision::kFp8E4m3>;
using Int8 = Codec<CommunicationPrecision::kInt8>;
using BFloat16 = Element<DataType::kBFloat16>;
using Float16 = Element<DataType::kFloat16>;
using Float32 = Element<DataType::kFloat32>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

// The value of each E4M3 code by the format's definition.
double E4m3Value(int code) {
  const int exponent = (code >> 3) & 15;
  const int fraction = code & 7;
  if ((code & 0x7f) == 0x7f) return std::nan("");
  const double magnitude = exponent == 0
                               ? std::ldexp(fraction, -9)
                               : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) ? -magnitude : magnitude;
}

// The nearest code by search through all of them: of two as near, the even.
int NearestE4m3(double value) {
  if (std::isnan(value)) return 0x7f;
  int best = 0;
  for (int code = 0; code < 0x7f; ++code) {
    const double distance = std::fabs(std::fabs(value) - E4m3Value(code));
    const double least = std::fabs(std::fabs(value) - E4m3Value(best));
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 0x80 : 0);
}

TEST(Fp8Test, DecodesEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float decoded = Fp8::Decode(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(decoded)) << code;
    } else {
      EXPECT_EQ(decoded, E4m3Value(code)) << code;
      EXPECT_EQ(std::signbit(decoded), code >= 0x80) << code;
      EXPECT_EQ(Fp8::Encode(decoded), code);
    }
  }
  EXPECT_EQ(Fp8::Decode(0x7e), 448.0f);
  EXPECT_EQ(Fp8::Decode(0x01), 0x1p-9f);
}

TEST(Fp8Test, RoundsEveryMidpointToEven) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = Fp8::Decode(static_cast<uint8_t>(code));
    const float high = Fp8::Decode(static_cast<uint8_t>(code + 1));
    const float middle = (low + high) / 2;
    const int even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(Fp8::Encode(middle), even);
    EXPECT_EQ(Fp8::Encode(-middle), even | 0x80);
    EXPECT_EQ(Fp8::Encode(std::nextafter(middle, 0.0f)), code);
    EXPECT_EQ(Fp8::Encode(std::nextafter(middle, kInfinity)), code + 1);
    EXPECT_EQ(Fp8::Encode(-std::nextafter(middle, kInfinity)),
              (code + 1) | 0x80);
  }
}

TEST(Fp8Test, SaturatesInsteadOfOverflowing) {
  for (const float value :
       {448.0f, 449.0f, 464.0f, 465.0f, 480.0f, 1000.0f, kLargest, kInfinity}) {
    EXPECT_EQ(Fp8::Encode(value), 0x7e) << value;
    EXPECT_EQ(Fp8::Encode(-value), 0xfe) << value;
  }
  EXPECT_EQ(Fp8::Encode(kNan), 0x7f);
  EXPECT_EQ(Fp8::Encode(-kNan), 0x7f);
  EXPECT_EQ(Fp8::Encode(0.0f), 0x00);
  EXPECT_EQ(Fp8::Encode(-0.0f), 0x80);
  EXPECT_EQ(Fp8::Encode(kSmallest), 0x00);
}

TEST(Fp8Test, EncodesEveryBFloat16AsTheNearestCode) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const float value = std::bit_cast<float>(bits << 16);
    ASSERT_EQ(Fp8::Encode(value), NearestE4m3(value)) << std::hex << bits;
  }
}

TEST(Fp8Test, ScalesByTheFormulaWithAFloor) {
  EXPECT_EQ(Fp8::Scale(448.0f), 1.0f);
  EXPECT_EQ(Fp8::Scale(3.0f), 3.0f / 448.0f);
  EXPECT_EQ(Fp8::Scale(0.0f), (1.0f / 512) / 448.0f);
  EXPECT_EQ(Fp8::Scale(0x1p-120f), (1.0f / 512) / 448.0f);
  EXPECT_EQ(Fp8::Scale(1.0f / 512), (1.0f / 512) / 448.0f);
  EXPECT_EQ(Fp8::Scale(kInfinity), kInfinity);
  EXPECT_EQ(std::bit_cast<uint32_t>(Fp8::Scale(kNan)), kNanBits);
  EXPECT_EQ(std::bit_cast<uint32_t>(Fp8::Scale(-kNan)), kNanBits);
}

// Half to even by the definition, without the rounding mode.
int NearestInteger(double value) {
  const double floor = std::floor(value);
  const double rest = value - floor;
  const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(floor, 2) != 0);
  return static_cast<int>(floor) + (up ? 1 : 0);
}

TEST(Int8Test, RoundsHalfToEvenAndClamps) {
  for (int i = -1400; i <= 1400; ++i) {
    const float value = static_cast<float>(i) / 8;
    const int expected = std::clamp(NearestInteger(value), -127, 127);
    EXPECT_EQ(static_cast<int8_t>(Int8::Encode(value)), expected) << value;
    EXPECT_EQ(
        static_cast<int8_t>(Int8::Encode(std::nextafter(value, kInfinity))),
        std::clamp(NearestInteger(std::nextafter(value, kInfinity)), -127, 127))
        << value;
  }
  EXPECT_EQ(Int8::Encode(kInfinity), 127);
  EXPECT_EQ(static_cast<int8_t>(Int8::Encode(-kInfinity)), -127);
  EXPECT_EQ(Int8::Encode(kLargest), 127);
  EXPECT_EQ(Int8::Encode(kNan), 0);
  for (int code = -127; code <= 127; ++code) {
    EXPECT_EQ(Int8::Decode(static_cast<uint8_t>(code)), code);
    EXPECT_EQ(static_cast<int8_t>(Int8::Encode(static_cast<float>(code))),
              code);
  }
}

TEST(Int8Test, ScalesByTheFormula) {
  EXPECT_EQ(Int8::Scale(127.0f), 1.0f);
  EXPECT_EQ(Int8::Scale(3.0f), 3.0f / 127.0f);
  EXPECT_EQ(Int8::Scale(0.0f), 1.0f);
  EXPECT_EQ(Int8::Scale(0x1p-143f), kSmallest);
  EXPECT_EQ(Int8::Scale(kSmallest), 0.0f);
  EXPECT_EQ(Int8::Scale(kInfinity), kInfinity);
  EXPECT_EQ(std::bit_cast<uint32_t>(Int8::Scale(-kNan)), kNanBits);
}

template <typename Codec>
float RoundTrip(float value, float amax) {
  const float scale = Codec::Scale(amax);
  return Codec::Decode(Codec::Encode(value / Divisor(scale))) * scale;
}

TEST(RoundTripTest, FiniteRowsStayFinite) {
  // Every exponent with the fractions that round furthest.
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (const uint32_t fraction :
         {0x000000u, 0x000001u, 0x200000u, 0x555555u, 0x7ffffeu, 0x7fffffu}) {
      const float amax = std::bit_cast<float>((exponent << 23) | fraction);
      for (const float value : {amax, -amax, amax / 2, 0.0f, kSmallest}) {
        if (std::fabs(value) > amax) continue;
        const float fp8 = RoundTrip<Fp8>(value, amax);
        const float int8 = RoundTrip<Int8>(value, amax);
        ASSERT_TRUE(std::isfinite(fp8)) << value << " of " << amax;
        ASSERT_TRUE(std::isfinite(int8)) << value << " of " << amax;
        if (value == 0) {
          EXPECT_EQ(fp8, 0.0f);
          EXPECT_EQ(int8, 0.0f);
        }
      }
      if (amax > 0x1p-9f) {
        EXPECT_NEAR(RoundTrip<Fp8>(amax, amax) / amax, 1, 1e-6);
      }
      if (amax > 0x1p-120f) {
        EXPECT_NEAR(RoundTrip<Int8>(-amax, amax) / amax, -1, 1e-6);
      }
    }
  }
}

TEST(RoundTripTest, NothingFiniteComesOfARowThatIsNot) {
  for (const float value : {0.0f, 1.0f, -1.0f, kLargest, -kLargest}) {
    EXPECT_FALSE(std::isfinite(RoundTrip<Fp8>(value, kInfinity))) << value;
    EXPECT_FALSE(std::isfinite(RoundTrip<Int8>(value, kInfinity))) << value;
    EXPECT_TRUE(std::isnan(RoundTrip<Fp8>(value, kNan))) << value;
    EXPECT_TRUE(std::isnan(RoundTrip<Int8>(value, kNan))) << value;
  }
  EXPECT_EQ(RoundTrip<Fp8>(kInfinity, kInfinity), kInfinity);
  EXPECT_EQ(RoundTrip<Fp8>(-kInfinity, kInfinity), -kInfinity);
  EXPECT_EQ(RoundTrip<Int8>(kInfinity, kInfinity), kInfinity);
  EXPECT_EQ(RoundTrip<Int8>(-kInfinity, kInfinity), -kInfinity);
}

// FastQuotient depends on the mantissas of x and amax and on how far apart
// their exponents are: one binade of amax and every smaller x are all there is.
template <DataType T, typename Codec>
void CheckFastQuotient(uint32_t first_amax, uint32_t last_amax) {
  for (uint32_t amax = first_amax; amax <= last_amax; ++amax) {
    const float scale = Codec::Scale(Element<T>::Widen(amax));
    ASSERT_TRUE(HasFastQuotient(scale));
    const float reciprocal = 1.0f / scale;
    for (uint32_t bits = 0; bits <= amax; ++bits) {
      for (const uint32_t sign : {0u, 0x8000u}) {
        const float x = Element<T>::Widen(static_cast<uint16_t>(bits | sign));
        const uint8_t code = Codec::Encode(FastQuotient(x, scale, reciprocal));
        ASSERT_EQ(code, Codec::Encode(x / scale)) << x << " / " << scale;
      }
    }
  }
}

TEST(FastQuotientTest, GivesTheCodesOfDivisionForEveryBFloat16) {
  constexpr auto kType = DataType::kBFloat16;
  CheckFastQuotient<kType, Fp8>(0x3f80, 0x4000);
  CheckFastQuotient<kType, Int8>(0x3f80, 0x4000);
  // Where the floor of the scale, not amax, decides.
  CheckFastQuotient<kType, Fp8>(0x3b00, 0x3b00);
}

TEST(FastQuotientTest, GivesTheCodesOfDivisionForEveryFloat16) {
  constexpr auto kType = DataType::kFloat16;
  CheckFastQuotient<kType, Fp8>(0x3c00, 0x4000);
  CheckFastQuotient<kType, Int8>(0x3c00, 0x4000);
  CheckFastQuotient<kType, Fp8>(0x1800, 0x1800);
}

TEST(FastQuotientTest, IsNotForExtremeScales) {
  for (const float scale :
       {0.0f, kSmallest, 0x1p-100f, 0x1p101f, kInfinity, kNan}) {
    EXPECT_FALSE(HasFastQuotient(scale)) << scale;
  }
  EXPECT_TRUE(HasFastQuotient(Fp8::Scale(0)));
}

// ----------------------------------------------------------------- elements

TEST(ElementTest, WidensEveryBFloat16) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    EXPECT_EQ(
        std::bit_cast<uint32_t>(BFloat16::Widen(static_cast<uint16_t>(bits))),
        bits << 16);
  }
}

double Float16Value(uint32_t bits) {
  const int exponent = static_cast<int>((bits >> 10) & 31);
  const int fraction = static_cast<int>(bits & 0x3ff);
  double magnitude = std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(fraction, -24);
  if (exponent == 31) magnitude = fraction ? std::nan("") : HUGE_VAL;
  return (bits & 0x8000) ? -magnitude : magnitude;
}

TEST(ElementTest, WidensEveryFloat16AndBack) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const double expected = Float16Value(bits);
    const float widened = Float16::Widen(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(widened)) << bits;
      EXPECT_EQ(Float16::Round(widened), 0x7fff);
    } else {
      EXPECT_EQ(widened, expected) << bits;
      EXPECT_EQ(std::signbit(widened), bits >= 0x8000) << bits;
      EXPECT_EQ(Float16::Round(widened), bits);
    }
  }
}

// Both sides of every midpoint of two neighbours, to the last bit of float32.
template <typename Element16>
void CheckMidpoints(uint32_t infinity_bits) {
  for (uint32_t bits = 0; bits < infinity_bits; ++bits) {
    const auto low = static_cast<uint16_t>(bits);
    const auto high = static_cast<uint16_t>(bits + 1);
    // In double, where the step from the largest finite value is also plain.
    const double step =
        high < infinity_bits
            ? double{Element16::Widen(high)} - double{Element16::Widen(low)}
            : double{Element16::Widen(low)} - double{Element16::Widen(low - 1)};
    const auto middle =
        static_cast<float>(double{Element16::Widen(low)} + step / 2);
    const uint16_t even = bits % 2 == 0 ? low : high;
    ASSERT_EQ(Element16::Round(middle), even) << bits;
    ASSERT_EQ(Element16::Round(-middle), even | 0x8000) << bits;
    ASSERT_EQ(Element16::Round(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(Element16::Round(std::nextafter(middle, kInfinity)), high)
        << bits;
  }
  EXPECT_EQ(Element16::Round(kInfinity), infinity_bits);
  EXPECT_EQ(Element16::Round(-kInfinity), infinity_bits | 0x8000);
  EXPECT_EQ(Element16::Round(kLargest), infinity_bits);
  EXPECT_EQ(Element16::Round(kNan), 0x7fff);
  EXPECT_EQ(Element16::Round(-kNan), 0x7fff);
  EXPECT_EQ(Element16::Round(-0.0f), 0x8000);
}

TEST(ElementTest, RoundsToFloat16AtEveryMidpoint) {
  CheckMidpoints<Float16>(0x7c00);
}

TEST(ElementTest, RoundsToBFloat16AtEveryMidpoint) {
  CheckMidpoints<BFloat16>(0x7f80);
}

TEST(ElementTest, KeepsFloat32) {
  for (const float value : {0.0f, -0.0f, 1.5f, kSmallest, -kLargest}) {
    EXPECT_EQ(Float32::Round(value), std::bit_cast<uint32_t>(value));
  }
  EXPECT_EQ(Float32::Round(-kInfinity), 0xff800000u);
  EXPECT_EQ(Float32::Round(-kNan), 0x7fffffffu);
}

}  // namespace
}  // namespace ithaca::kernels
