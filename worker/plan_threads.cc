#include "worker/plan_threads.h"

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace ithaca {

// A thread that runs one thing after another.
class PlanThreads::Helper {
 public:
  Helper() : thread_([this] { Loop(); }) {}
  ~Helper() {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    thread_.join();
  }

  void Run(const std::function<void()>& work) {
    absl::MutexLock lock(&mutex_);
    work_ = &work;
    mutex_.Await(absl::Condition(this, &Helper::IsIdle));
  }

 private:
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return work_ == nullptr;
  }
  bool HasWorkOrEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return work_ != nullptr || ended_;
  }

  void Loop() {
    absl::MutexLock lock(&mutex_);
    for (;;) {
      mutex_.Await(absl::Condition(this, &Helper::HasWorkOrEnded));
      if (work_ == nullptr) return;
      // Held while it runs: whoever waits for the lock waits for the work.
      (*work_)();
      work_ = nullptr;
    }
  }

  absl::Mutex mutex_;
  const std::function<void()>* work_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses all of the above
};

PlanThreads::PlanThreads(size_t limit) : limit_(limit) {}

PlanThreads::~PlanThreads() = default;

void PlanThreads::Run(const Shape& shape, const std::function<void()>& work) {
  if (own_.size() < limit_) own_.insert(shape);
  if (own_.count(shape) != 0) {
    work();
    return;
  }
  if (helpers_.count(shape) == 0 && helpers_.size() >= limit_) {
    helper_ = nullptr;
    helpers_.clear();
  }
  helpers_.insert(shape);
  if (helper_ == nullptr) helper_ = std::make_unique<Helper>();
  helper_->Run(work);
}

}  // namespace ithaca
