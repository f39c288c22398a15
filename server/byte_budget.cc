#include "server/byte_budget.h"

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

constexpr absl::Duration kRetryAfter = absl::Milliseconds(500);

}  // namespace

ByteBudget::Reservation& ByteBudget::Reservation::operator=(
    Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    owner_ = std::exchange(other.owner_, nullptr);
    bytes_ = other.bytes_;
  }
  return *this;
}

void ByteBudget::Reservation::Release() {
  if (owner_ == nullptr) return;
  const absl::MutexLock lock(&owner_->mutex_);
  owner_->reserved_ -= bytes_;
  owner_ = nullptr;
}

absl::StatusOr<ByteBudget::Reservation> ByteBudget::Reserve(int64_t bytes) {
  if (bytes > limit_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request's ", bytes,
                     " tensor bytes are over what all calls together may "
                     "have, ",
                     limit_));
  }
  const absl::MutexLock lock(&mutex_);
  if (bytes > limit_ - reserved_) {
    return WithRetryHint(absl::ResourceExhaustedError(absl::StrCat(
                             "calls in flight have ", reserved_, " of ", limit_,
                             " tensor bytes; the request needs ", bytes)),
                         kRetryAfter);
  }
  reserved_ += bytes;
  Reservation reservation;
  reservation.owner_ = this;
  reservation.bytes_ = bytes;
  return reservation;
}

int64_t ByteBudget::reserved() const {
  const absl::MutexLock lock(&mutex_);
  return reserved_;
}

}  // namespace ithaca::server
