#include "server/admission_queue.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/pending_call.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

constexpr absl::Duration kRetryAfter = absl::Milliseconds(200);

}  // namespace

absl::Status AdmissionQueue::Push(std::shared_ptr<PendingCall> call) {
  const absl::MutexLock lock(&mutex_);
  if (static_cast<int64_t>(calls_.size()) >= max_queued_requests_ &&
      !call->bound()) {
    return Full();
  }
  calls_.push_back(std::move(call));
  return absl::OkStatus();
}

void AdmissionQueue::PushFront(std::shared_ptr<PendingCall> call) {
  const absl::MutexLock lock(&mutex_);
  calls_.push_front(std::move(call));
}

std::shared_ptr<PendingCall> AdmissionQueue::Pop(std::string_view group,
                                                 uint64_t generation) {
  const absl::MutexLock lock(&mutex_);
  const auto found =
      std::find_if(calls_.begin(), calls_.end(), [&](const auto& queued) {
        return !queued->bound() ||
               (queued->group == group && queued->generation == generation);
      });
  if (found == calls_.end()) return nullptr;
  std::shared_ptr<PendingCall> call = std::move(*found);
  calls_.erase(found);
  return call;
}

absl::Status AdmissionQueue::Full() const {
  return WithRetryHint(
      absl::ResourceExhaustedError(absl::StrCat(
          "the queue is full: ", max_queued_requests_, " requests wait")),
      kRetryAfter);
}

bool AdmissionQueue::Remove(const PendingCall& call) {
  // The call may be destroyed with its last reference: outside the lock.
  std::shared_ptr<PendingCall> removed;
  const absl::MutexLock lock(&mutex_);
  const auto found = std::find_if(
      calls_.begin(), calls_.end(),
      [&call](const auto& queued) { return queued.get() == &call; });
  if (found == calls_.end()) return false;
  removed = std::move(*found);
  calls_.erase(found);
  return true;
}

std::vector<std::shared_ptr<PendingCall>> AdmissionQueue::TakeAll() {
  const absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<PendingCall>> calls(
      std::make_move_iterator(calls_.begin()),
      std::make_move_iterator(calls_.end()));
  calls_.clear();
  return calls;
}

int64_t AdmissionQueue::size() const {
  const absl::MutexLock lock(&mutex_);
  return static_cast<int64_t>(calls_.size());
}

}  // namespace ithaca::server
