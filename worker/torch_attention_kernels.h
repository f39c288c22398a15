#ifndef ITHACA_WORKER_TORCH_ATTENTION_KERNELS_H_
#define ITHACA_WORKER_TORCH_ATTENTION_KERNELS_H_

#include <memory>

#include "worker/attention_kernel.h"

namespace ithaca {

struct TorchAttentionOptions {
  // Threads of one Attend; 0 = LibTorch's own choice, the processor's cores.
  int num_threads = 0;
};

// Attention on the CPU by LibTorch, on host memory.
//
//   MATH   the definition, in float32 throughout, one rounding at the end;
//          queries in blocks, so that logits take 64 MiB at most
//   FLASH  LibTorch's fused kernel: float32 logits and sums; weights of
//          16-bit inputs are rounded to 16 bits before they meet the values.
//          It can lose a NaN, so inputs that hold one, an infinity or numbers
//          near an overflow take MATH instead, whatever was chosen.
//
// Every dtype and head dim in [1, 256]. AUTO is FLASH. CUDNN is kUnimplemented.
//
// Thread-safety: Attend from one thread at a time.
std::unique_ptr<AttentionKernels> MakeTorchAttentionKernels(
    const TorchAttentionOptions& options = {});

}  // namespace ithaca

#endif  // ITHACA_WORKER_TORCH_ATTENTION_KERNELS_H_
