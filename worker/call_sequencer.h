#ifndef ITHACA_WORKER_CALL_SEQUENCER_H_
#define ITHACA_WORKER_CALL_SEQUENCER_H_

#include <cstdint>
#include <functional>
#include <map>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ithaca {

// Puts the calls of one generation in order: they come from the network in any
// order and run strictly by number, 1, 2, 3, without gaps, on the thread that
// calls Run. That order is the same on every rank, so exchanges meet.
//
// Thread-safety: any thread may call any method; one thread calls Run.
class CallSequencer {
 public:
  // Called exactly once for each Submit that was OK: with OK, on the thread in
  // Run, when its turn has come; or with the reason of Abort, on the thread
  // that aborts.
  using Call = std::function<void(const absl::Status& admission)>;

  // `window`: how far ahead of the next call a call may be.
  explicit CallSequencer(uint64_t window = 1024) : window_(window) {}

  // Errors, after which `call` is never called: kAlreadyExists (this number is
  // waiting), kInvalidArgument (it has had its turn, or is 0), kOutOfRange
  // (beyond the window), the reason of Abort.
  absl::Status Submit(uint64_t number, Call call);

  // Runs calls until Abort. Calls that had begun are finished.
  void Run();

  // Ends the sequence: Run returns after the call it is in, and those that
  // wait get `why`. The first reason stays. REQUIRES: !why.ok().
  void Abort(const absl::Status& why);

  // Waits until no call runs and none whose turn has come waits; true if that
  // was so within `limit` or the sequence was aborted.
  bool AwaitIdle(absl::Duration limit);

 private:
  bool NextIsHere() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return waiting_.count(next_) != 0;
  }
  bool HasWorkOrEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return NextIsHere() || !ended_.ok();
  }
  bool IdleOrEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (!running_ && !NextIsHere()) || !ended_.ok();
  }

  const uint64_t window_;
  absl::Mutex mutex_;
  absl::Status ended_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Call> waiting_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_CALL_SEQUENCER_H_
