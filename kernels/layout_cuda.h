#ifndef ITHACA_KERNELS_LAYOUT_CUDA_H_
#define ITHACA_KERNELS_LAYOUT_CUDA_H_

#include <cuda_runtime_api.h>

#include "absl/types/span.h"
#include "kernels/layout.h"

// The jobs of kernels/layout.h on the current device's memory, queued on a
// stream: bit for bit what kernels/layout_cpu.h gives.
//
// All jobs go in one launch, or in one for each 64 of them (and one more if
// some, but not all, (de)quantised rows can't be read in 16-byte vectors; see
// RowTask::wide). Jobs travel as kernel parameters: nothing is allocated,
// copied or waited for, and `jobs` may go when the call returns.
//
// Returns the launch's error. An earlier error of the stream's work is not
// looked for. Thread-safe.
//
// Cost: each element is read once and written once.

namespace ithaca::kernels {

struct CudaLaunchOptions {
  // Thread blocks a launch has at most for each multiprocessor, each working
  // through tiles until none is left: room for others' kernels. 0: a block for
  // each tile, which is fastest: the device hands them out as others end, and
  // none has more to do than another.
  int max_blocks_per_multiprocessor = 0;
};

cudaError_t CopyHeadsCuda(const LayoutParams& params,
                          absl::Span<const CopyJob> jobs, cudaStream_t stream,
                          const CudaLaunchOptions& options = {});

cudaError_t QuantizeHeadsCuda(const LayoutParams& params,
                              absl::Span<const QuantizeJob> jobs,
                              cudaStream_t stream,
                              const CudaLaunchOptions& options = {});

cudaError_t DequantizeHeadsCuda(const LayoutParams& params,
                                absl::Span<const DequantizeJob> jobs,
                                cudaStream_t stream,
                                const CudaLaunchOptions& options = {});

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_LAYOUT_CUDA_H_
