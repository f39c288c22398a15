#ifndef ITHACA_WORKER_CUDA_DEVICE_H_
#define ITHACA_WORKER_CUDA_DEVICE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/device.h"

namespace ithaca {

// One GPU and one compute stream on it. Work is queued on the stream and runs
// in order; only Allocate, Free, the copies from and to the host, and
// Synchronize make the host wait.
//
// A wait of the host never outlasts a dead peer: a wait check, which the
// group's communicator sets, is asked again and again while it lasts.
//
// Thread-safety: one thread at a time, whichever it is.
class CudaDevice : public Device {
 public:
  // GPU `ordinal` of those CUDA shows to the process.
  // Errors: kInvalidArgument (no such GPU), kFailedPrecondition (a driver or
  // CUDA runtime older than built for), kInternal.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int ordinal);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int ordinal() const { return ordinal_; }
  cudaStream_t stream() const { return stream_; }
  // "GPU-" and 32 hexadecimal digits in the groups of a UUID, as nvidia-smi
  // prints it: the same for every process that sees this GPU.
  const std::string& uuid() const { return uuid_; }
  // 90 for capability 9.0.
  int compute_capability() const { return compute_capability_; }

  // An error of the check ends a wait of the host and is what the waiting
  // call returns. An empty function takes the check away.
  void SetWaitCheck(std::function<absl::Status()> check);
  // Called when memory is short, to give back what a library keeps for later;
  // the allocation is then tried once more.
  void SetReclaim(std::function<void()> reclaim);

  // Waits until `event` has passed. Errors: as Synchronize.
  absl::Status WaitFor(cudaEvent_t event);
  // Makes this GPU the calling thread's.
  absl::Status MakeCurrent() const;

  std::string name() const override;
  absl::StatusOr<void*> Allocate(int64_t bytes) override;
  void Free(void* memory) override;
  // The host memory may be reused, or is filled, when these return.
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

 private:
  // A pinned buffer, and the event after which it is free again.
  struct Staging {
    void* memory = nullptr;
    cudaEvent_t free = nullptr;
  };
  struct MarkPool {
    std::vector<cudaEvent_t> events;
    size_t used = 0;
  };

  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {}
  absl::Status Initialize();

  const int ordinal_;
  int compute_capability_ = 0;
  std::string uuid_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::array<Staging, 2> staging_;
  // Marks of the time since the last Synchronize, and of the time before it.
  std::array<MarkPool, 2> marks_;
  uint64_t generation_ = 0;
  std::function<absl::Status()> wait_check_;
  std::function<void()> reclaim_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_DEVICE_H_
