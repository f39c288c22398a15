#ifndef ITHACA_WORKER_PLAN_THREADS_H_
#define ITHACA_WORKER_PLAN_THREADS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>

namespace ithaca {

// Bounds what a library keeps for each shape it has seen, thread by thread and
// for as long as the thread lives, as LibTorch does with cuDNN's plans.
//
// Work of the first `limit` shapes runs on the calling thread. Work of others
// runs on a thread of this object's own, which costs some ten microseconds and
// which is ended, with all that it kept, after `limit` shapes more. So at most
// 2 * limit plans are kept, and shapes that come often keep theirs.
//
// Thread-safety: one thread, always the same, calls Run.
class PlanThreads {
 public:
  // All that a plan depends on.
  using Shape = std::array<int64_t, 8>;

  explicit PlanThreads(size_t limit);
  ~PlanThreads();
  PlanThreads(const PlanThreads&) = delete;
  PlanThreads& operator=(const PlanThreads&) = delete;

  // Returns when `work` has run. REQUIRES: it does not throw.
  void Run(const Shape& shape, const std::function<void()>& work);

 private:
  class Helper;

  const size_t limit_;
  std::set<Shape> own_;      // of the calling thread
  std::set<Shape> helpers_;  // of the helper, since it began
  std::unique_ptr<Helper> helper_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_PLAN_THREADS_H_
