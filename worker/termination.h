#ifndef ITHACA_WORKER_TERMINATION_H_
#define ITHACA_WORKER_TERMINATION_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace ithaca {

// Why the process is to end: the first reason that anyone gives. Thread-safe.
class Termination {
 public:
  struct Reason {
    int exit_code = 0;
    std::string text;
  };

  void Request(int exit_code, std::string text);
  Reason Await();

 private:
  absl::Mutex mutex_;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
  Reason reason_ ABSL_GUARDED_BY(mutex_);
};

// From now on SIGTERM and SIGINT request a termination with exit code 0, and
// the second of them ends the process at once. Call it first in main, so that
// every thread inherits the blocked signals. `termination` lives as long as
// the process.
void TerminateOnSignals(Termination* termination);

// The kernel kills this process when its parent, which must be `parent`, ends.
// Errors: kFailedPrecondition (the parent is another, or has ended already).
absl::Status ExitWithParent(int parent);

}  // namespace ithaca

#endif  // ITHACA_WORKER_TERMINATION_H_
