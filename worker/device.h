#ifndef ITHACA_WORKER_DEVICE_H_
#define ITHACA_WORKER_DEVICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/attention_call.h"
#include "kernels/layout.h"

// The processor that one rank runs on: its memory, and the order of work on it.
// Work is given in order and runs in order; on a CPU it has run when the call
// returns, on a GPU it is queued on the rank's compute stream.
//
// Thread-safety: one thread at a time.

namespace ithaca {

// A point in the device's order of work, for stage times.
using DeviceMark = uint64_t;

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda:0".
  virtual std::string name() const = 0;

  // Whether work may be given the host's memory as well as the device's own.
  virtual bool ReachesHostMemory() const { return false; }

  // At least 256-byte aligned. Errors: kResourceExhausted.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  // nullptr is allowed. Waits for work that may use the memory.
  virtual void Free(void* memory) = 0;

  virtual absl::Status CopyFromHost(void* dst, const void* src,
                                    int64_t bytes) = 0;
  virtual absl::Status CopyToHost(void* dst, const void* src,
                                  int64_t bytes) = 0;
  // Among memory of the device, of another device that it reaches, and
  // page-locked memory of the host: what is read stays as it is, and what is
  // written is not read, until Synchronize.
  virtual absl::Status Copy(void* dst, const void* src, int64_t bytes) = 0;
  virtual absl::Status Zero(void* dst, int64_t bytes) = 0;

  // The jobs of kernels/layout.h, all of a stage in one call.
  virtual absl::Status CopyHeads(const kernels::LayoutParams& params,
                                 absl::Span<const kernels::CopyJob> jobs) = 0;
  virtual absl::Status QuantizeHeads(
      const kernels::LayoutParams& params,
      absl::Span<const kernels::QuantizeJob> jobs) = 0;
  virtual absl::Status DequantizeHeads(
      const kernels::LayoutParams& params,
      absl::Span<const kernels::DequantizeJob> jobs) = 0;

  // Marks are valid until the next Synchronize but one.
  virtual DeviceMark Mark() = 0;
  // Waits for all work given so far. Errors: kInternal (a device fault: the
  // process must end), kUnavailable (work waits for an exchange with a peer
  // that is gone: Abort the communicator, then the device is whole).
  virtual absl::Status Synchronize() = 0;
  // Seconds between two marks. REQUIRES: a Synchronize since the later one.
  virtual double SecondsBetween(DeviceMark from, DeviceMark to) = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_DEVICE_H_
