#ifndef ITHACA_KERNELS_ELEMENT_H_
#define ITHACA_KERNELS_ELEMENT_H_

#include <cstdint>
#include <cstring>

#include "core/data_type.h"
#include "kernels/host_device.h"

// Tensor elements as bits, and their way to float32 and back. Free of branches,
// so that loops over them become vector code.
//
// Element<T>::Storage     unsigned integer that holds the bits
// Element<T>::kAbsMask    all bits but the sign: of two elements without it,
//                         the larger integer has the larger magnitude, and a
//                         NaN is above infinity
// Element<T>::Widen       exact
// Element<T>::Round       to nearest even; a NaN becomes the one with all bits
//                         set but the sign, as on NVIDIA GPUs

namespace ithaca::kernels {

ITHACA_HOST_DEVICE_INLINE uint32_t BitsOf(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

ITHACA_HOST_DEVICE_INLINE float FloatOf(uint32_t bits) {
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <DataType>
struct Element;

template <>
struct Element<DataType::kFloat32> {
  using Storage = uint32_t;
  static constexpr Storage kAbsMask = 0x7fffffff;

  ITHACA_HOST_DEVICE_INLINE static float Widen(Storage bits) {
    return FloatOf(bits);
  }
  ITHACA_HOST_DEVICE_INLINE static Storage Round(float value) {
    const uint32_t bits = BitsOf(value);
    return (bits & kAbsMask) > 0x7f800000 ? kAbsMask : bits;
  }
};

template <>
struct Element<DataType::kBFloat16> {
  using Storage = uint16_t;
  static constexpr Storage kAbsMask = 0x7fff;

  ITHACA_HOST_DEVICE_INLINE static float Widen(Storage bits) {
    return FloatOf(static_cast<uint32_t>(bits) << 16);
  }
  ITHACA_HOST_DEVICE_INLINE static Storage Round(float value) {
    const uint32_t bits = BitsOf(value);
    // Half a step less one, and one more if the last bit kept is odd.
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    return static_cast<Storage>(nan ? kAbsMask : rounded);
  }
};

template <>
struct Element<DataType::kFloat16> {
  using Storage = uint16_t;
  static constexpr Storage kAbsMask = 0x7fff;

  ITHACA_HOST_DEVICE_INLINE static float Widen(Storage bits) {
    const uint32_t magnitude = bits & 0x7fffu;
    const uint32_t sign = (bits & 0x8000u) << 16;
    const uint32_t shifted = magnitude << 13;
    // The exponent's bias moves from 15 to 127, and that of infinity and NaN
    // from 31 to 255.
    const uint32_t normal = shifted + (112u << 23);
    const uint32_t special = shifted + (224u << 23);
    // A subnormal is its fraction in steps of 2^-24.
    const uint32_t subnormal =
        BitsOf(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
    const uint32_t finite = magnitude < 0x0400 ? subnormal : normal;
    return FloatOf((magnitude >= 0x7c00 ? special : finite) | sign);
  }
  ITHACA_HOST_DEVICE_INLINE static Storage Round(float value) {
    const uint32_t bits = BitsOf(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t normal =
        (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    // 0.5 has steps of 2^-24, those of the subnormals: the addition rounds.
    const uint32_t subnormal = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t small = magnitude < 0x38800000 ? subnormal : normal;
    // From 65520 on, what rounds up to 2^16 is infinite.
    const uint32_t finite = magnitude >= 0x477ff000 ? 0x7c00u : small;
    const bool nan = magnitude > 0x7f800000;
    return static_cast<Storage>(nan ? kAbsMask : (finite | sign));
  }
};

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_ELEMENT_H_
