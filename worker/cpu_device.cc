#include "worker/cpu_device.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/layout_cpu.h"

namespace ithaca {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

absl::StatusOr<void*> CpuDevice::Allocate(int64_t bytes) {
  if (bytes < 0 || bytes > std::numeric_limits<int64_t>::max() - kAlignment) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot allocate ", bytes, " bytes of host memory"));
  }
  // aligned_alloc wants a whole number of alignments; one at least, so that
  // an empty block still has an address.
  const int64_t rounded = (bytes / kAlignment + 1) * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, static_cast<size_t>(rounded));
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of host memory: ", bytes, " bytes wanted"));
  }
  return memory;
}

void CpuDevice::Free(void* memory) { std::free(memory); }

absl::Status CpuDevice::CopyFromHost(void* dst, const void* src,
                                     int64_t bytes) {
  if (bytes > 0) std::memcpy(dst, src, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status CpuDevice::CopyToHost(void* dst, const void* src, int64_t bytes) {
  return CopyFromHost(dst, src, bytes);
}

absl::Status CpuDevice::Copy(void* dst, const void* src, int64_t bytes) {
  return CopyFromHost(dst, src, bytes);
}

absl::Status CpuDevice::Zero(void* dst, int64_t bytes) {
  if (bytes > 0) std::memset(dst, 0, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status CpuDevice::CopyHeads(const kernels::LayoutParams& params,
                                  absl::Span<const kernels::CopyJob> jobs) {
  kernels::CopyHeadsCpu(params, jobs);
  return absl::OkStatus();
}

absl::Status CpuDevice::QuantizeHeads(
    const kernels::LayoutParams& params,
    absl::Span<const kernels::QuantizeJob> jobs) {
  kernels::QuantizeHeadsCpu(params, jobs);
  return absl::OkStatus();
}

absl::Status CpuDevice::DequantizeHeads(
    const kernels::LayoutParams& params,
    absl::Span<const kernels::DequantizeJob> jobs) {
  kernels::DequantizeHeadsCpu(params, jobs);
  return absl::OkStatus();
}

DeviceMark CpuDevice::Mark() {
  return static_cast<DeviceMark>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(
          std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

absl::Status CpuDevice::Synchronize() { return absl::OkStatus(); }

double CpuDevice::SecondsBetween(DeviceMark from, DeviceMark to) {
  return static_cast<double>(to - from) * 1e-9;
}

}  // namespace ithaca
