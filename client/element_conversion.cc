#include "client/element_conversion.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace ithaca::client {
namespace {

constexpr uint32_t kFloatInfinity = 0x7f800000u;

template <typename T>
T LoadAt(std::span<const std::byte> bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void StoreAt(std::span<std::byte> bytes, size_t index, T value) {
  std::memcpy(bytes.data() + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

float BFloat16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t FloatToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // The quiet bit is set so that a NaN whose payload is cut away remains one.
  if ((bits & 0x7fffffffu) > kFloatInfinity) {
    return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  }
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float Float16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide_exponent = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide_exponent << 23) | (mantissa << 13));
}

uint16_t FloatToFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kFloatInfinity) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // rounds past 65504
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24
    const float steps = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return sign | static_cast<uint16_t>(std::nearbyint(steps));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return sign | static_cast<uint16_t>((rounded - 0x38000000u) >> 13);
}

void Widen(v1::DataType dtype, std::span<const std::byte> from,
           std::span<double> to) {
  switch (dtype) {
    case v1::DATA_TYPE_FLOAT32:
      for (size_t i = 0; i < to.size(); ++i) to[i] = LoadAt<float>(from, i);
      break;
    case v1::DATA_TYPE_FLOAT16:
      for (size_t i = 0; i < to.size(); ++i) {
        to[i] = Float16ToFloat(LoadAt<uint16_t>(from, i));
      }
      break;
    default:
      for (size_t i = 0; i < to.size(); ++i) {
        to[i] = BFloat16ToFloat(LoadAt<uint16_t>(from, i));
      }
  }
}

void Narrow(v1::DataType dtype, std::span<const float> from,
            std::span<std::byte> to) {
  switch (dtype) {
    case v1::DATA_TYPE_FLOAT32:
      std::memcpy(to.data(), from.data(), from.size_bytes());
      break;
    case v1::DATA_TYPE_FLOAT16:
      for (size_t i = 0; i < from.size(); ++i) {
        StoreAt(to, i, FloatToFloat16(from[i]));
      }
      break;
    default:
      for (size_t i = 0; i < from.size(); ++i) {
        StoreAt(to, i, FloatToBFloat16(from[i]));
      }
  }
}

}  // namespace ithaca::client
