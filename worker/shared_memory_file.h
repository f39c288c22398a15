#ifndef ITHACA_WORKER_SHARED_MEMORY_FILE_H_
#define ITHACA_WORKER_SHARED_MEMORY_FILE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/region.h"

namespace ithaca {

// A region of a shared memory object, read and written as a file: an object
// that its owner truncates meanwhile then ends in an error, where a mapping
// would end in SIGBUS.
//
// Thread-safe.
class SharedMemoryFile {
 public:
  // Errors: see RegionOpener.
  static absl::StatusOr<SharedMemoryFile> Open(const SharedMemoryObject& object,
                                               uint64_t byte_size);
  ~SharedMemoryFile();
  SharedMemoryFile(SharedMemoryFile&& other) noexcept;
  SharedMemoryFile& operator=(SharedMemoryFile&&) = delete;

  // See AttachedRegion, for offsets too.
  absl::Status Check() const;
  absl::Status Read(void* dst, int64_t offset, int64_t bytes) const;
  // Never makes the object larger, as far as its owner leaves it alone while
  // this runs.
  absl::Status Write(int64_t offset, const void* src, int64_t bytes) const;

  int descriptor() const { return descriptor_; }
  int64_t begin() const { return begin_; }  // in the object
  int64_t byte_size() const { return byte_size_; }

 private:
  SharedMemoryFile(int descriptor, int64_t begin, int64_t byte_size);

  int descriptor_;
  int64_t begin_;
  int64_t byte_size_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_SHARED_MEMORY_FILE_H_
