#ifndef ITHACA_CLIENT_REGION_POOL_H_
#define ITHACA_CLIENT_REGION_POOL_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/memory_lease.h"
#include "client/memory_region.h"

namespace ithaca::client {

// Registered shared memory that is used again from call to call: making and
// registering it costs more than a copy. Thread-safe.
class RegionPool : public std::enable_shared_from_this<RegionPool> {
 public:
  // Called exactly once: in the call itself, or on a thread of gRPC's.
  using Acquired =
      std::function<void(absl::StatusOr<std::shared_ptr<MemoryRegion>>)>;

  // At most max_idle_bytes are kept for later; the least lately used go first.
  RegionPool(std::shared_ptr<MemoryLease> lease, uint64_t max_idle_bytes);

  // A registered region of at least byte_size bytes. It is the caller's alone
  // until the last copy of the pointer is gone; then it comes back here.
  // Errors: SharedMemoryObject::Create's, MemoryLease::Register's. What was
  // refused once is not tried again before Forgive, but for a server that was
  // not there.
  void Acquire(uint64_t byte_size, absl::Time deadline, Acquired acquired);

  // Regions of byte_size bytes and more are not to be had, and none at all if
  // `why` is not about their size (kResourceExhausted).
  void Refuse(uint64_t byte_size, const absl::Status& why);
  // Another server may judge otherwise.
  void Forgive();
  // Drops what is idle.
  void Clear();

  uint64_t idle_bytes() const;

 private:
  std::shared_ptr<MemoryRegion> TakeIdle(uint64_t byte_size);
  absl::StatusOr<std::shared_ptr<MemoryRegion>> Make(uint64_t byte_size);
  std::shared_ptr<MemoryRegion> Lend(std::shared_ptr<MemoryRegion> region);
  void Recycle(std::shared_ptr<MemoryRegion> region);

  const std::shared_ptr<MemoryLease> lease_;
  const uint64_t max_idle_bytes_;
  mutable absl::Mutex mutex_;
  // Most lately used first.
  std::list<std::shared_ptr<MemoryRegion>> idle_ ABSL_GUARDED_BY(mutex_);
  uint64_t idle_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // Regions of at least refused_bytes_ bytes are not to be had: refusal_.
  uint64_t refused_bytes_ ABSL_GUARDED_BY(mutex_);
  absl::Status refusal_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_REGION_POOL_H_
