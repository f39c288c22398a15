#include "worker/arena.h"

#include <cstdint>
#include <cstdlib>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ithaca {
namespace {

constexpr int64_t kAlignment = 256;

}  // namespace

Arena::Arena(Device* device) : device_(device) {}

Arena::~Arena() { device_->Free(block_); }

absl::Status Arena::Reset(int64_t bytes) {
  used_ = 0;
  if (bytes <= capacity_) return absl::OkStatus();
  // The old block goes first: both together may be more than there is.
  device_->Free(block_);
  block_ = nullptr;
  capacity_ = 0;
  absl::StatusOr<void*> block = device_->Allocate(bytes);
  if (!block.ok()) return block.status();
  block_ = static_cast<char*>(*block);
  capacity_ = bytes;
  return absl::OkStatus();
}

void* Arena::Take(int64_t bytes) {
  const int64_t size = AlignedSize(bytes);
  // Our own bug, and one that would write over other memory.
  if (size > capacity_ - used_) std::abort();
  void* memory = block_ + used_;
  used_ += size;
  return memory;
}

int64_t Arena::AlignedSize(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace ithaca
