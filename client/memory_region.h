#ifndef ITHACA_CLIENT_MEMORY_REGION_H_
#define ITHACA_CLIENT_MEMORY_REGION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/plane.h"
#include "client/shared_memory_object.h"

namespace ithaca::client {

class MemoryLease;

// Memory of a GPU on the server's host. The allocation must stay for as long
// as the region does.
struct CudaMemory {
  std::string ipc_handle = {};   // cudaIpcMemHandle_t, 64 bytes
  std::string device_uuid = {};  // "GPU-...", as nvidia-smi prints it
  uint64_t offset = 0;           // bytes from the start of the allocation
  uint64_t byte_size = 0;
};

// Memory that server and client share under a lease. When its last holder lets
// go it is unregistered, and a shared memory object is removed. Thread-safe.
class MemoryRegion {
 public:
  // Who the server knows it as; empty before it is registered.
  struct Registration {
    std::string lease = {};
    std::string name = {};
  };

  MemoryRegion(std::shared_ptr<MemoryLease> lease, SharedMemoryObject object);
  MemoryRegion(std::shared_ptr<MemoryLease> lease, CudaMemory memory);
  ~MemoryRegion();
  MemoryRegion(const MemoryRegion&) = delete;
  MemoryRegion& operator=(const MemoryRegion&) = delete;

  Plane plane() const;  // kSharedMemory or kCudaMemory
  uint64_t byte_size() const;
  // Empty: this process cannot read it.
  std::span<std::byte> bytes() const;
  Registration registration() const;

  // A call that did not end well may still read or write it: it is not to be
  // used for another.
  void MarkUncertain() { uncertain_ = true; }
  bool uncertain() const { return uncertain_; }

 private:
  friend class MemoryLease;

  const std::shared_ptr<MemoryLease> lease_;
  const std::optional<SharedMemoryObject> object_;
  const CudaMemory cuda_;
  std::atomic<bool> uncertain_ = false;
  mutable absl::Mutex mutex_;
  Registration registration_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_MEMORY_REGION_H_
