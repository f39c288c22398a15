#ifndef ITHACA_KERNELS_QUANTIZATION_H_
#define ITHACA_KERNELS_QUANTIZATION_H_

#include <cmath>
#include <cstdint>

#include "core/attention_call.h"
#include "kernels/element.h"
#include "kernels/host_device.h"

// The arithmetic of 8-bit rows: scale, code and back. One definition for CPU
// and GPU, which agree bit for bit as long as float32 division, product and
// addition round to nearest even and keep subnormals (no fast-math).
//
//   scale   = Codec<P>::Scale(amax)       amax: largest |x| of the row
//   code    = Codec<P>::Encode(x / Divisor(scale))
//   x'      = Codec<P>::Decode(code) * scale, rounded once to the dtype
//
// No NaN or infinity comes of a finite row, and nothing finite of a row that is
// not: with a NaN in it, scale is NaN and all of the row comes back NaN; with
// an infinity, scale is infinite, an infinity comes back as it was, and what
// was finite as NaN or infinity.

namespace ithaca::kernels {

inline constexpr uint32_t kInfinityBits = 0x7f800000;
inline constexpr uint32_t kNanBits = 0x7fffffff;
inline constexpr uint32_t kLargestFloatBits = 0x7f7fffff;

// A NaN scale always has the same bits.
ITHACA_HOST_DEVICE_INLINE float CanonicalScale(float scale) {
  return BitsOf(scale) > kInfinityBits ? FloatOf(kNanBits) : scale;
}

// What x is divided by: the scale, but the largest finite number for an
// infinite one, so that an infinite x saturates its code (infinity over
// infinity would be NaN).
ITHACA_HOST_DEVICE_INLINE float Divisor(float scale) {
  return BitsOf(scale) == kInfinityBits ? FloatOf(kLargestFloatBits) : scale;
}

// x / scale for 16-bit x in three steps, given reciprocal = 1 / scale rounded:
// a quotient, what it is off by, and its correction. Not always the float32
// quotient's last bit, but always its code: of every 16-bit value and amax (a
// test goes through them all). REQUIRES: HasFastQuotient(scale), which keeps
// the steps within the normal numbers.
ITHACA_HOST_DEVICE_INLINE bool HasFastQuotient(float scale) {
  return scale >= 0x1p-60f && scale <= 0x1p100f;
}

ITHACA_HOST_DEVICE_INLINE float FastQuotient(float x, float scale,
                                             float reciprocal) {
  const float quotient = x * reciprocal;
  // What it exceeds x by, not what it leaves: so a negative zero stays one.
  const float excess = fmaf(quotient, scale, -x);
  return fmaf(-excess, reciprocal, quotient);
}

template <CommunicationPrecision>
struct Codec;

// E4M3 as in the OCP 8-bit specification (arXiv:2209.05433): sign, 4 bits of
// exponent with bias 7, 3 of fraction; no infinity; NaN is 0x7f and 0xff.
template <>
struct Codec<CommunicationPrecision::kFp8E4m3> {
  ITHACA_HOST_DEVICE_INLINE static float Scale(float amax) {
    constexpr float kSmallest = 1.0f / 512;
    return CanonicalScale((amax < kSmallest ? kSmallest : amax) / 448.0f);
  }

  // To nearest even, saturating at +-448; NaN gives 0x7f.
  ITHACA_HOST_DEVICE_INLINE static uint8_t Encode(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t sign = (bits >> 24) & 0x80;
    constexpr uint32_t k448 = 0x43e00000;
    const uint32_t capped = magnitude < k448 ? magnitude : k448;
    // 20 fraction bits are rounded away; the bias moves from 127 to 7.
    const uint32_t normal =
        ((capped + 0x7ffff + ((capped >> 20) & 1)) >> 20) - (120u << 3);
    // 2^14 has steps of 2^-9, those of the subnormals: the addition rounds.
    const uint32_t subnormal = BitsOf(FloatOf(capped) + 16384.0f) - 0x46800000u;
    const uint32_t code = capped < 0x3c800000 ? subnormal : normal;
    return static_cast<uint8_t>(magnitude > kInfinityBits ? 0x7f : code | sign);
  }

  ITHACA_HOST_DEVICE_INLINE static float Decode(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t subnormal =
        BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
    const uint32_t finite = magnitude < 8 ? subnormal : normal;
    return FloatOf((magnitude == 0x7f ? kNanBits : finite) | sign);
  }
};

template <>
struct Codec<CommunicationPrecision::kInt8> {
  // 0 for a row below 2^-143, whose quotient underflows: it comes back 0.
  ITHACA_HOST_DEVICE_INLINE static float Scale(float amax) {
    // The quotient of the largest float rounds up, and 127 times that would be
    // infinite: one step down.
    const uint32_t step = BitsOf(amax) == kLargestFloatBits ? 1 : 0;
    const float quotient = FloatOf(BitsOf(amax / 127.0f) - step);
    return CanonicalScale(amax == 0 ? 1.0f : quotient);
  }

  // Half to even, clamped to +-127; NaN (0 over a scale of 0) gives 0.
  ITHACA_HOST_DEVICE_INLINE static uint8_t Encode(float value) {
    const float number = value == value ? value : 0.0f;
    const float above = number > -127.0f ? number : -127.0f;
    const float clamped = above < 127.0f ? above : 127.0f;
    // 1.5 * 2^23 has steps of 1: the addition rounds, and the last bits of the
    // sum are the integer's.
    return static_cast<uint8_t>(BitsOf(clamped + 12582912.0f));
  }

  ITHACA_HOST_DEVICE_INLINE static float Decode(uint8_t code) {
    return static_cast<float>(static_cast<int8_t>(code));
  }
};

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_QUANTIZATION_H_
