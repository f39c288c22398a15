#ifndef ITHACA_WORKER_REGION_H_
#define ITHACA_WORKER_REGION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device.h"

// Memory of a client on this host that calls read their tensors from and write
// their outputs to. It is the client's: it may write to it or make it smaller
// at any time, and a rank may have no fault from that.

namespace ithaca {

// A POSIX shared memory object, the very one that the coordinator opened.
struct SharedMemoryObject {
  std::string name;     // of shm_open, with its leading slash
  uint64_t offset = 0;  // bytes, where the region begins
  uint64_t device_number = 0;
  uint64_t inode = 0;

  friend bool operator==(const SharedMemoryObject&,
                         const SharedMemoryObject&) = default;
};

// An allocation of cudaMalloc in another process.
struct CudaAllocation {
  std::string ipc_handle;  // cudaIpcMemHandle_t
  std::string device_uuid;
  uint64_t offset = 0;  // bytes, where the region begins

  friend bool operator==(const CudaAllocation&,
                         const CudaAllocation&) = default;
};

struct Region {
  uint64_t id = 0;
  uint64_t byte_size = 0;
  std::variant<SharedMemoryObject, CudaAllocation> memory;

  friend bool operator==(const Region&, const Region&) = default;
};

// A tensor's bytes within a region.
struct RegionSlice {
  Region region;
  uint64_t offset = 0;  // from the region's start
  uint64_t byte_size = 0;
};

// A region that this process has opened; closed when it is destroyed.
//
// Offsets are bytes from the region's start. REQUIRES: offset + bytes <= the
// region's size, bytes >= 0.
//
// Thread-safety: the copies belong to the device's thread; the rest is safe
// from any.
class AttachedRegion {
 public:
  virtual ~AttachedRegion() = default;

  // Where the rank's device reads and writes the region as its own memory;
  // null if it has to be copied.
  virtual char* device_memory() { return nullptr; }

  // kFailedPrecondition: the memory is less than it was.
  virtual absl::Status Check() = 0;

  // In the device's order of work, as its copies from and to the host; the
  // region is written when the device has been synchronized.
  // Errors: kFailedPrecondition (the memory is less than it was),
  // kResourceExhausted (the system has no memory for what is written), the
  // device's.
  virtual absl::Status CopyToDevice(Device* device, void* dst, int64_t offset,
                                    int64_t bytes) = 0;
  virtual absl::Status CopyFromDevice(Device* device, int64_t offset,
                                      const void* src, int64_t bytes) = 0;
};

// Thread-safe.
class RegionOpener {
 public:
  virtual ~RegionOpener() = default;

  // Errors: kNotFound (no such object here), kInvalidArgument (the region does
  // not lie within the object), kFailedPrecondition (this process cannot reach
  // it; says why), kUnimplemented (not this kind on this device),
  // kResourceExhausted.
  virtual absl::StatusOr<std::unique_ptr<AttachedRegion>> Open(
      const Region& region) = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_REGION_H_
