#include "worker/termination.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca {

void Termination::Request(int exit_code, std::string text) {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(requested_, true)) return;
  reason_ = {exit_code, std::move(text)};
}

Termination::Reason Termination::Await() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&requested_));
  return reason_;
}

void TerminateOnSignals(Termination* termination) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([termination, signals] {
    int signal = 0;
    sigwait(&signals, &signal);
    termination->Request(0, absl::StrCat("signal ", signal));
    sigwait(&signals, &signal);
    _exit(128 + signal);
  }).detach();
}

absl::Status ExitWithParent(int parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Looked at after the request: a parent that ended before it is found here.
  if (getppid() != parent) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--exit-with-parent: the parent is ", getppid(), ", not ", parent));
  }
  return absl::OkStatus();
}

}  // namespace ithaca
