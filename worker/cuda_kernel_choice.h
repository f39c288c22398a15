#ifndef ITHACA_WORKER_CUDA_KERNEL_CHOICE_H_
#define ITHACA_WORKER_CUDA_KERNEL_CHOICE_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"

// Which attention kernel runs on a GPU, from what the GPU is and what the call
// is. Pure: the same on every rank of a group of equal GPUs.

namespace ithaca {

struct CudaKernelLimits {
  // Capability, as 10 * major + minor, from which FLASH and CUDNN are there.
  static constexpr int kMinCapability = 80;
  // CUDNN's forward pass, of the version that LibTorch 2.11 carries.
  static constexpr int64_t kCudnnMaxHeadDim = 128;
  static constexpr int64_t kCudnnMinKeys = 2;
  // AUTO takes CUDNN from this many kept keys in each batch element on. Below
  // it attention takes microseconds whichever kernel runs, and CUDNN's plan,
  // 35 ms for each new number of tokens, would never be earned back.
  static constexpr int64_t kAutoCudnnMinKeys = 1024;
};

// Kinds that some call runs with, MATH first.
std::vector<AttentionKernelKind> CudaKernels(int compute_capability);

// The kernel for a call: `wanted`, or for kAuto the fastest that can.
// Errors: kUnimplemented, naming the kernel, the device and the limit.
absl::StatusOr<AttentionKernelKind> ChooseCudaKernel(
    AttentionKernelKind wanted, const AttentionShape& shape,
    int compute_capability, std::string_view device);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_KERNEL_CHOICE_H_
