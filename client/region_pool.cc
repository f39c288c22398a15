#include "client/region_pool.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <mutex>
#include <utility>

namespace ithaca::client {
namespace {

constexpr uint64_t kNothingRefused = std::numeric_limits<uint64_t>::max();
constexpr uint64_t kSmallestRegion = uint64_t{64} << 10;

// Eight sizes between a power of two and the next, so that calls of nearly the
// same shape share regions, and no region is more than an eighth too large.
uint64_t RoundUp(uint64_t byte_size) {
  if (byte_size <= kSmallestRegion) return kSmallestRegion;
  constexpr uint64_t kSteps = 8;
  const uint64_t step =
      std::max(std::bit_floor(byte_size - 1), kSmallestRegion) / kSteps;
  return (byte_size + step - 1) / step * step;
}

// A region may serve a call of half its size, not of less.
bool Fits(const MemoryRegion& region, uint64_t byte_size) {
  return region.byte_size() >= byte_size &&
         (region.byte_size() / 2 <= byte_size ||
          region.byte_size() == kSmallestRegion);
}

}  // namespace

RegionPool::RegionPool(std::shared_ptr<MemoryLease> lease,
                       uint64_t max_idle_bytes)
    : lease_(std::move(lease)),
      max_idle_bytes_(max_idle_bytes),
      refused_bytes_(kNothingRefused) {}

void RegionPool::Acquire(uint64_t byte_size, absl::Time deadline,
                         Acquired acquired) {
  if (auto idle = TakeIdle(byte_size)) {
    acquired(Lend(std::move(idle)));
    return;
  }
  auto made = Make(byte_size);
  if (!made.ok()) {
    acquired(made.status());
    return;
  }
  const std::shared_ptr<MemoryRegion> region = *std::move(made);
  lease_->Register(
      region, deadline,
      [self = shared_from_this(), region, byte_size,
       acquired = std::move(acquired)](const absl::Status& status) {
        if (status.ok()) {
          acquired(self->Lend(region));
          return;
        }
        self->Refuse(byte_size, status);
        acquired(status);
      });
}

void RegionPool::Forgive() {
  const absl::MutexLock lock(&mutex_);
  refused_bytes_ = kNothingRefused;
  refusal_ = absl::OkStatus();
}

void RegionPool::Clear() {
  std::list<std::shared_ptr<MemoryRegion>> dropped;
  const absl::MutexLock lock(&mutex_);
  dropped.swap(idle_);
  idle_bytes_ = 0;
}

uint64_t RegionPool::idle_bytes() const {
  const absl::MutexLock lock(&mutex_);
  return idle_bytes_;
}

std::shared_ptr<MemoryRegion> RegionPool::TakeIdle(uint64_t byte_size) {
  // Those of a lease that was lost are dropped on the way, outside the lock.
  std::list<std::shared_ptr<MemoryRegion>> lost;
  const absl::MutexLock lock(&mutex_);
  std::shared_ptr<MemoryRegion> found;
  if (refused_bytes_ == 0) return found;
  for (auto it = idle_.begin(); it != idle_.end();) {
    const auto here = it++;
    const bool is_lost = !lease_->Covers(**here);
    if (!is_lost && (found != nullptr || !Fits(**here, byte_size))) continue;
    idle_bytes_ -= (*here)->byte_size();
    if (is_lost) {
      lost.splice(lost.end(), idle_, here);
    } else {
      found = std::move(*here);
      idle_.erase(here);
    }
  }
  return found;
}

absl::StatusOr<std::shared_ptr<MemoryRegion>> RegionPool::Make(
    uint64_t byte_size) {
  {
    const absl::MutexLock lock(&mutex_);
    if (byte_size >= refused_bytes_) return refusal_;
  }
  static std::once_flag cleaned;
  std::call_once(cleaned, [] { RemoveAbandonedObjects(); });
  for (bool may_clear = true;; may_clear = false) {
    auto object = SharedMemoryObject::Create(RoundUp(byte_size));
    if (object.ok()) {
      return std::make_shared<MemoryRegion>(lease_, *std::move(object));
    }
    if (!absl::IsResourceExhausted(object.status()) || !may_clear ||
        idle_bytes() == 0) {
      Refuse(byte_size, object.status());
      return object.status();
    }
    Clear();
  }
}

void RegionPool::Refuse(uint64_t byte_size, const absl::Status& why) {
  const absl::MutexLock lock(&mutex_);
  switch (why.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
      return;  // nothing was judged
    case absl::StatusCode::kResourceExhausted:
      if (byte_size >= refused_bytes_) return;
      refused_bytes_ = byte_size;
      break;
    default:
      refused_bytes_ = 0;
  }
  refusal_ = why;
}

std::shared_ptr<MemoryRegion> RegionPool::Lend(
    std::shared_ptr<MemoryRegion> region) {
  MemoryRegion* lent = region.get();
  return std::shared_ptr<MemoryRegion>(
      lent, [pool = weak_from_this(),
             region = std::move(region)](MemoryRegion*) mutable {
        if (const auto alive = pool.lock()) alive->Recycle(std::move(region));
      });
}

void RegionPool::Recycle(std::shared_ptr<MemoryRegion> region) {
  if (region->uncertain() || !lease_->Covers(*region)) return;
  std::list<std::shared_ptr<MemoryRegion>> dropped;
  const absl::MutexLock lock(&mutex_);
  idle_bytes_ += region->byte_size();
  idle_.push_front(std::move(region));
  while (idle_bytes_ > max_idle_bytes_) {
    idle_bytes_ -= idle_.back()->byte_size();
    dropped.splice(dropped.end(), idle_, std::prev(idle_.end()));
  }
}

}  // namespace ithaca::client
