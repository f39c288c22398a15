#include "worker/host_buffer_pool.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ithaca {
namespace {

bool Smaller(const std::unique_ptr<HostBuffer>& a,
             const std::unique_ptr<HostBuffer>& b) {
  return a->capacity() < b->capacity();
}

}  // namespace

HostBuffer::HostBuffer(int64_t capacity, std::shared_ptr<PinnedMemory> pinned)
    : capacity_(capacity), pinned_(std::move(pinned)) {
  const int64_t bytes = std::max<int64_t>(capacity, 1);
  data_ = pinned_ == nullptr ? nullptr : pinned_->Allocate(bytes);
  if (data_ != nullptr) return;
  pinned_.reset();
  data_ = static_cast<char*>(std::malloc(static_cast<size_t>(bytes)));
}

HostBuffer::~HostBuffer() {
  if (pinned_ != nullptr) {
    pinned_->Free(data_);
  } else {
    std::free(data_);
  }
}

HostBufferPool::HostBufferPool(std::shared_ptr<PinnedMemory> pinned,
                               size_t max_kept)
    : pinned_(std::move(pinned)),
      max_kept_(max_kept),
      shelf_(std::make_shared<Shelf>()) {}

absl::StatusOr<std::shared_ptr<HostBuffer>> HostBufferPool::Take(
    int64_t bytes) {
  std::unique_ptr<HostBuffer> buffer;
  {
    absl::MutexLock lock(&shelf_->mutex);
    // The smallest that is large enough: larger ones are for larger calls.
    auto best = shelf_->buffers.end();
    for (auto it = shelf_->buffers.begin(); it != shelf_->buffers.end(); ++it) {
      if ((*it)->capacity() < bytes) continue;
      if (best == shelf_->buffers.end() || Smaller(*it, *best)) best = it;
    }
    if (best != shelf_->buffers.end()) {
      buffer = std::move(*best);
      shelf_->buffers.erase(best);
    }
  }
  if (buffer == nullptr) {
    buffer = std::make_unique<HostBuffer>(bytes, pinned_);
    if (buffer->data() == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("out of host memory: ", bytes, " bytes wanted"));
    }
  }
  return std::shared_ptr<HostBuffer>(
      buffer.release(),
      [shelf = shelf_, max_kept = max_kept_](HostBuffer* returned) {
        PutBack(shelf.get(), max_kept, returned);
      });
}

void HostBufferPool::PutBack(Shelf* shelf, size_t max_kept,
                             HostBuffer* buffer) {
  std::unique_ptr<HostBuffer> dropped(buffer);
  absl::MutexLock lock(&shelf->mutex);
  shelf->buffers.push_back(std::move(dropped));
  if (shelf->buffers.size() <= max_kept) return;
  auto smallest =
      std::min_element(shelf->buffers.begin(), shelf->buffers.end(), Smaller);
  dropped = std::move(*smallest);
  shelf->buffers.erase(smallest);
}

}  // namespace ithaca
