#ifndef ITHACA_SERVER_TIMER_QUEUE_H_
#define ITHACA_SERVER_TIMER_QUEUE_H_

#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ithaca::server {

// Runs functions when their time has come, one after another, on a thread of
// its own. What is no longer wanted is not taken out: such a function finds
// nothing to do. Thread-safe.
class TimerQueue {
 public:
  TimerQueue();
  // Waits for the function that runs; drops those whose time has not come.
  ~TimerQueue();
  TimerQueue(const TimerQueue&) = delete;
  TimerQueue& operator=(const TimerQueue&) = delete;

  // `function` is run at `time` or soon after; it must not block.
  void At(absl::Time time, std::function<void()> function);

 private:
  void Run();

  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::multimap<absl::Time, std::function<void()>> waiting_
      ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_TIMER_QUEUE_H_
