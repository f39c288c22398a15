#ifndef ITHACA_WORKER_TORCH_CUDA_ATTENTION_KERNELS_H_
#define ITHACA_WORKER_TORCH_CUDA_ATTENTION_KERNELS_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/sequence_parallel_plan.h"
#include "worker/attention_kernel.h"
#include "worker/cuda_device.h"
#include "worker/plan_threads.h"

namespace ithaca {

// Attention on a GPU, by LibTorch's operators on the device's compute stream.
//
//   CUDNN  cuDNN's fused attention; a plan is made for each shape (35 ms) and
//          kept, for 512 shapes at most
//   FLASH  FlashAttention 2
//   MATH   the definition, in float32 without TF32, in pieces of bounded size
//
// Rows go in as strided views and the output comes back in [tokens, heads, D];
// only a head_dim that is not a multiple of 8 costs CUDNN and FLASH copies
// (padded with zeros, which add nothing to a logit).
//
// LibTorch keeps the memory it frees for the next call. What a call needs is
// taken from it in Reserve, before the call's first exchange.
//
// Thread-safety: Choose and Available from any thread; the rest from one,
// always the same: LibTorch keeps plans by thread.
class TorchCudaAttentionKernels : public AttentionKernels {
 public:
  // `device` outlives this; when it is short of memory it takes what LibTorch
  // keeps.
  explicit TorchCudaAttentionKernels(CudaDevice* device);
  ~TorchCudaAttentionKernels() override;

  absl::StatusOr<AttentionKernelKind> Choose(
      AttentionKernelKind wanted, const AttentionShape& shape) const override;
  std::vector<AttentionKernelKind> Available() const override;
  absl::Status Reserve(const SequenceParallelPlan& plan, int rank,
                       AttentionKernelKind kernel) override;
  absl::StatusOr<AttentionResult> Attend(
      const AttentionArguments& arguments) override;

 private:
  CudaDevice* const device_;
  PlanThreads plans_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_TORCH_CUDA_ATTENTION_KERNELS_H_
