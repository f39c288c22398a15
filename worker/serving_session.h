#ifndef ITHACA_WORKER_SERVING_SESSION_H_
#define ITHACA_WORKER_SERVING_SESSION_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/group_session.h"

namespace ithaca {

// The session that this worker's calls go to, if there is one.
//
// Thread-safe.
class ServingSession {
 public:
  // Calls of its generation go to `session` from now on; null: to none.
  void Set(std::shared_ptr<GroupSession> session);

  // Errors: kFailedPrecondition (there is none of this generation). Not to be
  // kept for longer than a call's submission: a session ends with its last
  // holder, who waits for its thread.
  absl::StatusOr<std::shared_ptr<GroupSession>> Find(uint64_t generation);

  // Waits until the session, if there is one, has no call to run; false if it
  // still had at `limit`.
  bool AwaitIdle(absl::Duration limit);

 private:
  std::shared_ptr<GroupSession> session();

  absl::Mutex mutex_;
  std::shared_ptr<GroupSession> session_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_SERVING_SESSION_H_
