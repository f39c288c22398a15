#ifndef ITHACA_WORKER_HOST_BUFFER_POOL_H_
#define ITHACA_WORKER_HOST_BUFFER_POOL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace ithaca {

// Host memory that inputs are staged in, and that outputs lie in until they
// are sent.
class HostBuffer {
 public:
  explicit HostBuffer(int64_t capacity);  // data() is null if there is none
  ~HostBuffer();
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;

  char* data() { return data_; }
  const char* data() const { return data_; }
  int64_t capacity() const { return capacity_; }

 private:
  const int64_t capacity_;
  char* const data_;
};

// Keeps a few buffers for the next calls: fresh memory costs a page fault for
// every page, more than the copy into it. What it keeps depends on the largest
// calls and not on how many shapes were seen.
//
// Thread-safe. Buffers may outlive the pool.
class HostBufferPool {
 public:
  explicit HostBufferPool(size_t max_kept = 2);

  // At least `bytes` large, contents undefined; goes back to the pool when the
  // last reference is gone. Errors: kResourceExhausted.
  absl::StatusOr<std::shared_ptr<HostBuffer>> Take(int64_t bytes);

 private:
  struct Shelf {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<HostBuffer>> buffers ABSL_GUARDED_BY(mutex);
  };

  static void PutBack(Shelf* shelf, size_t max_kept, HostBuffer* buffer);

  const size_t max_kept_;
  const std::shared_ptr<Shelf> shelf_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_HOST_BUFFER_POOL_H_
