#ifndef ITHACA_WORKER_SESSION_REAPER_H_
#define ITHACA_WORKER_SESSION_REAPER_H_

#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/group_session.h"

namespace ithaca {

// Ends sessions beside the thread that has had enough of them: to abort a
// group, and to wait for a call that computes, takes longer than a heartbeat
// may be late. Each has a thread of its own, so that none waits for another.
//
// Thread-safe.
class SessionReaper {
 public:
  SessionReaper() = default;
  ~SessionReaper();  // waits for all sessions to end

  // Aborts the session and waits for its thread, some time soon; then calls
  // on_ended, on a thread of the reaper's.
  void Bury(std::shared_ptr<GroupSession> session, absl::Status why,
            std::function<void()> on_ended);

  // Whether every session buried so far has ended, at the latest after
  // `limit`.
  bool AwaitAll(absl::Duration limit);

 private:
  struct Burial {
    std::thread thread;
    bool done = false;
  };

  void JoinDone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AllDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  std::list<Burial> burials_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_SESSION_REAPER_H_
