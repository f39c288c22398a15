#include "worker/value_range.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/data_type.h"
#include "worker/attention_kernel.h"

namespace ithaca {
namespace {

// Without its sign bit, a floating point number orders as an integer does:
// finite ones, infinity, NaNs. The loop over integers becomes vector code.
template <typename Bits>
Bits LargestMagnitude(int64_t head_dim, const TokenRows& rows) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max() >> 1;
  // head_stride 0: one head, seen as many.
  const int64_t heads = rows.head_stride == 0 ? 1 : rows.heads;
  const bool dense_heads = rows.head_stride == head_dim;
  const int64_t run = dense_heads ? heads * head_dim : head_dim;
  const int64_t runs = dense_heads ? 1 : heads;
  const Bits* data = static_cast<const Bits*>(rows.data);
  Bits largest = 0;
  for (int64_t token = 0; token < rows.tokens; ++token) {
    for (int64_t i = 0; i < runs; ++i) {
      const Bits* row = data + token * rows.token_stride + i * rows.head_stride;
      for (int64_t d = 0; d < run; ++d) {
        largest = std::max(largest, static_cast<Bits>(row[d] & kMagnitude));
      }
    }
  }
  return largest;
}

float FromHalfMagnitude(uint16_t bits) {
  const int exponent = bits >> 10;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31) {
    return mantissa == 0 ? std::numeric_limits<float>::infinity()
                         : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), -24);
  return std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

}  // namespace

float AbsoluteMaximum(DataType dtype, int64_t head_dim, const TokenRows& rows) {
  switch (dtype) {
    case DataType::kFloat32:
      return std::bit_cast<float>(LargestMagnitude<uint32_t>(head_dim, rows));
    case DataType::kBFloat16:
      return std::bit_cast<float>(
          static_cast<uint32_t>(LargestMagnitude<uint16_t>(head_dim, rows))
          << 16);
    case DataType::kFloat16:
      return FromHalfMagnitude(LargestMagnitude<uint16_t>(head_dim, rows));
  }
  return std::numeric_limits<float>::quiet_NaN();
}

bool AttentionStaysFinite(const AttentionArguments& arguments) {
  const double query =
      AbsoluteMaximum(arguments.dtype, arguments.head_dim, arguments.query);
  const double key =
      AbsoluteMaximum(arguments.dtype, arguments.head_dim, arguments.key);
  const float value =
      AbsoluteMaximum(arguments.dtype, arguments.head_dim, arguments.value);
  // Bounds the sum of products before and after scaling, whichever way a
  // kernel does it. A NaN makes every comparison false.
  const double dot = query * key * static_cast<double>(arguments.head_dim);
  const double scale = std::max(1.0, std::abs(arguments.softmax_scale));
  return dot * scale < std::numeric_limits<float>::max() / 4 &&
         std::isfinite(value);
}

}  // namespace ithaca
