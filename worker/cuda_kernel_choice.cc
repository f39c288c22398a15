#include "worker/cuda_kernel_choice.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace ithaca {

namespace {

absl::string_view Absl(std::string_view text) {
  return {text.data(), text.size()};
}

// Of the batch elements that have a kept key at all; the others run nothing.
int64_t FewestKeys(const AttentionShape& shape) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const int64_t valid : shape.valid_text_tokens) {
    const int64_t keys = shape.image_tokens + valid;
    if (keys > 0) fewest = std::min(fewest, keys);
  }
  return fewest;
}

// Why `kernel` cannot run the call, or "".
std::string Limit(AttentionKernelKind kernel, const AttentionShape& shape,
                  int capability) {
  if (kernel == AttentionKernelKind::kMath) return "";
  if (capability < CudaKernelLimits::kMinCapability) {
    return absl::StrCat("needs compute capability 8.0 or more, this GPU's is ",
                        capability / 10, ".", capability % 10);
  }
  if (shape.dtype == DataType::kFloat32) {
    return "takes float16 and bfloat16, not float32";
  }
  if (kernel != AttentionKernelKind::kCudnn) return "";
  if (shape.head_dim > CudaKernelLimits::kCudnnMaxHeadDim) {
    return absl::StrCat("takes head_dim up to ",
                        CudaKernelLimits::kCudnnMaxHeadDim, ", not ",
                        shape.head_dim);
  }
  if (FewestKeys(shape) < CudaKernelLimits::kCudnnMinKeys) {
    return absl::StrCat("takes ", CudaKernelLimits::kCudnnMinKeys,
                        " keys or more in a batch element, not ",
                        FewestKeys(shape));
  }
  return "";
}

// Where cuDNN's attention is the faster one: on an H200 by 1.6 to 2 times.
bool PrefersCudnn(int capability) {
  return capability >= 90 && capability < 110;
}

}  // namespace

std::vector<AttentionKernelKind> CudaKernels(int compute_capability) {
  std::vector<AttentionKernelKind> kernels = {AttentionKernelKind::kMath};
  if (compute_capability >= CudaKernelLimits::kMinCapability) {
    kernels.push_back(AttentionKernelKind::kFlash);
    kernels.push_back(AttentionKernelKind::kCudnn);
  }
  return kernels;
}

absl::StatusOr<AttentionKernelKind> ChooseCudaKernel(
    AttentionKernelKind wanted, const AttentionShape& shape,
    int compute_capability, std::string_view device) {
  if (wanted != AttentionKernelKind::kAuto) {
    const std::string limit = Limit(wanted, shape, compute_capability);
    if (limit.empty()) return wanted;
    return absl::UnimplementedError(absl::StrCat("attention kernel ",
                                                 Absl(Name(wanted)), " on ",
                                                 Absl(device), " ", limit));
  }
  const auto can = [&](AttentionKernelKind kernel) {
    return Limit(kernel, shape, compute_capability).empty();
  };
  if (PrefersCudnn(compute_capability) && can(AttentionKernelKind::kCudnn) &&
      FewestKeys(shape) >= CudaKernelLimits::kAutoCudnnMinKeys) {
    return AttentionKernelKind::kCudnn;
  }
  return can(AttentionKernelKind::kFlash) ? AttentionKernelKind::kFlash
                                          : AttentionKernelKind::kMath;
}

}  // namespace ithaca
