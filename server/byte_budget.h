#ifndef ITHACA_SERVER_BYTE_BUDGET_H_
#define ITHACA_SERVER_BYTE_BUDGET_H_

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace ithaca::server {

// How many bytes of tensors all admitted calls may have together. Thread-safe.
class ByteBudget {
 public:
  // Bytes taken until Release or its end. Movable.
  class Reservation {
   public:
    Reservation() = default;
    Reservation(Reservation&& other) noexcept { *this = std::move(other); }
    Reservation& operator=(Reservation&& other) noexcept;
    ~Reservation() { Release(); }

    void Release();  // idempotent

   private:
    friend class ByteBudget;
    ByteBudget* owner_ = nullptr;  // nullptr: holds nothing
    int64_t bytes_ = 0;
  };

  // REQUIRES: limit >= 0. Outlives its reservations.
  explicit ByteBudget(int64_t limit) : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // Errors: kResourceExhausted, with a retry hint unless `bytes` is over the
  // limit by itself. REQUIRES: bytes >= 0.
  absl::StatusOr<Reservation> Reserve(int64_t bytes);

  int64_t reserved() const;

 private:
  const int64_t limit_;
  mutable absl::Mutex mutex_;
  int64_t reserved_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_BYTE_BUDGET_H_
