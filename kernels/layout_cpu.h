#ifndef ITHACA_KERNELS_LAYOUT_CPU_H_
#define ITHACA_KERNELS_LAYOUT_CPU_H_

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/layout.h"

// The jobs of kernels/layout.h on host memory, in the calling thread.
// Thread-safe for disjoint destinations. Never fail.

namespace ithaca::kernels {

void CopyHeadsCpu(const LayoutParams& params, absl::Span<const CopyJob> jobs);

void QuantizeHeadsCpu(const LayoutParams& params,
                      absl::Span<const QuantizeJob> jobs);

void DequantizeHeadsCpu(const LayoutParams& params,
                        absl::Span<const DequantizeJob> jobs);

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_LAYOUT_CPU_H_
