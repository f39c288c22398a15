#ifndef ITHACA_WORKER_CPU_DEVICE_H_
#define ITHACA_WORKER_CPU_DEVICE_H_

#include <cstdint>
#include <string>

#include "worker/device.h"

namespace ithaca {

// The host's memory and processor. Work has run when a call returns, so
// Synchronize has nothing to wait for and marks are times of the steady clock.
//
// Thread-safety: safe from several threads on disjoint memory.
class CpuDevice : public Device {
 public:
  std::string name() const override { return "cpu"; }

  bool ReachesHostMemory() const override { return true; }

  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* memory) override;

  absl::Status CopyFromHost(void* dst, const void* src, int64_t bytes) override;
  absl::Status CopyToHost(void* dst, const void* src, int64_t bytes) override;
  absl::Status Copy(void* dst, const void* src, int64_t bytes) override;
  absl::Status Zero(void* dst, int64_t bytes) override;

  absl::Status CopyHeads(const kernels::LayoutParams& params,
                         absl::Span<const kernels::CopyJob> jobs) override;
  absl::Status QuantizeHeads(
      const kernels::LayoutParams& params,
      absl::Span<const kernels::QuantizeJob> jobs) override;
  absl::Status DequantizeHeads(
      const kernels::LayoutParams& params,
      absl::Span<const kernels::DequantizeJob> jobs) override;

  DeviceMark Mark() override;
  absl::Status Synchronize() override;
  double SecondsBetween(DeviceMark from, DeviceMark to) override;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_CPU_DEVICE_H_
