#ifndef ITHACA_WORKER_ARENA_H_
#define ITHACA_WORKER_ARENA_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device.h"

namespace ithaca {

// One block of device memory that every call uses anew, so that memory held
// depends on the largest call and not on how many shapes were seen.
//
// Thread-safety: one thread at a time. Memory handed out is valid until the
// next Reset.
class Arena {
 public:
  explicit Arena(Device* device);  // outlives this
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Forgets what was handed out and makes room for `bytes` in all; grows the
  // block, to exactly what is needed, only if it is too small.
  // Errors: kResourceExhausted (the block is then empty, the arena usable).
  absl::Status Reset(int64_t bytes);

  // 256-byte aligned. REQUIRES: the sum of AlignedSize since Reset fits.
  void* Take(int64_t bytes);

  // What Take(bytes) uses up.
  static int64_t AlignedSize(int64_t bytes);

  int64_t capacity() const { return capacity_; }

 private:
  Device* const device_;
  char* block_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_ARENA_H_
