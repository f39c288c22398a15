#ifndef ITHACA_KERNELS_FAST_DIVIDER_H_
#define ITHACA_KERNELS_FAST_DIVIDER_H_

#include <cstdint>

#include "kernels/host_device.h"

namespace ithaca::kernels {

// Divides by a number fixed on the host with one multiplication and one shift:
// a GPU has no instruction for integer division.
//
//   floor(n / d) = floor(n * m / 2^(31 + s)),  s = ceil(log2 d),
//   m = ceil(2^(31 + s) / d), in [2^31, 2^32)
//
// Exact for 0 <= n < 2^31 and 1 <= d < 2^31: m exceeds 2^(31 + s) / d by less
// than 1, so that the product exceeds n / d by less than n / 2^(31 + s) < 1/d.
// Source: Granlund and Montgomery, "Division by invariant integers using
// multiplication" (PLDI 1994).
class FastDivider {
 public:
  FastDivider() = default;

  // REQUIRES: 1 <= divisor < 2^31.
  explicit FastDivider(int64_t divisor)
      : divisor_(static_cast<uint32_t>(divisor)) {
    while ((uint64_t{1} << shift_) < divisor_) ++shift_;
    const uint64_t power = uint64_t{1} << (31 + shift_);
    multiplier_ = static_cast<uint32_t>((power + divisor_ - 1) / divisor_);
  }

  // REQUIRES: n < 2^31.
  ITHACA_HOST_DEVICE_INLINE uint32_t Divide(uint32_t n) const {
    const uint64_t product = uint64_t{n << 1} * multiplier_;
    return static_cast<uint32_t>(product >> 32) >> shift_;
  }

  ITHACA_HOST_DEVICE_INLINE uint32_t divisor() const { return divisor_; }

 private:
  uint32_t divisor_ = 1;
  uint32_t multiplier_ = uint32_t{1} << 31;
  uint32_t shift_ = 0;
};

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_FAST_DIVIDER_H_
