#include "server/timer_queue.h"

#include <functional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ithaca::server {

TimerQueue::TimerQueue() : thread_([this] { Run(); }) {}

TimerQueue::~TimerQueue() {
  {
    const absl::MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void TimerQueue::At(absl::Time time, std::function<void()> function) {
  const absl::MutexLock lock(&mutex_);
  const auto added = waiting_.emplace(time, std::move(function));
  if (added == waiting_.begin()) changed_.Signal();
}

void TimerQueue::Run() {
  const absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    const auto next = waiting_.begin();
    if (next == waiting_.end()) {
      changed_.Wait(&mutex_);
      continue;
    }
    if (next->first > absl::Now()) {
      changed_.WaitWithDeadline(&mutex_, next->first);
      continue;
    }
    std::function<void()> function = std::move(next->second);
    waiting_.erase(next);
    mutex_.Unlock();
    function();
    // What it holds may not be destroyed under the lock either.
    function = nullptr;
    mutex_.Lock();
  }
}

}  // namespace ithaca::server
