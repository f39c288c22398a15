#ifndef ITHACA_WORKER_HOST_BUFFER_POOL_H_
#define ITHACA_WORKER_HOST_BUFFER_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace ithaca {

// Page-locked host memory: a GPU copies it at full speed, and it takes long to
// get. Thread-safe.
class PinnedMemory {
 public:
  virtual ~PinnedMemory() = default;
  // Null: there is not as much. bytes > 0.
  virtual char* Allocate(int64_t bytes) = 0;
  virtual void Free(char* memory) = 0;
};

// Host memory that inputs are staged in, and that outputs lie in until they
// are sent.
class HostBuffer {
 public:
  // Page-locked where `pinned` is there and has as much. data() is null if
  // there is no memory at all.
  explicit HostBuffer(int64_t capacity,
                      std::shared_ptr<PinnedMemory> pinned = nullptr);
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  char* data() { return data_; }
  const char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }
  bool is_pinned() const { return pinned_ != nullptr; }

 private:
  const int64_t capacity_;
  std::shared_ptr<PinnedMemory> pinned_;  // null: not page-locked
  char* data_;
};

// Keeps a few buffers for the next calls: fresh memory costs a page fault for
// every page, more than the copy into it. What it keeps depends on the largest
// calls and not on how many shapes were seen.
//
// Thread-safe. Buffers may outlive the pool.
class HostBufferPool {
 public:
  // pinned: where buffers come from if it has as much; null: nowhere.
  explicit HostBufferPool(std::shared_ptr<PinnedMemory> pinned = nullptr,
                          size_t max_kept = 3);

  // At least `bytes` large, contents undefined; goes back to the pool when the
  // last reference is gone. Errors: kResourceExhausted.
  absl::StatusOr<std::shared_ptr<HostBuffer>> Take(int64_t bytes);

 private:
  struct Shelf {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<HostBuffer>> buffers ABSL_GUARDED_BY(mutex);
  };

  static void PutBack(Shelf* shelf, size_t max_kept, HostBuffer* buffer);

  const std::shared_ptr<PinnedMemory> pinned_;
  const size_t max_kept_;
  const std::shared_ptr<Shelf> shelf_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_HOST_BUFFER_POOL_H_
