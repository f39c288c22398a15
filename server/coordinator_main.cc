// ithaca-coordinator: flags, signals, and a Coordinator between them.

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/common.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/callback_queue.h"
#include "server/coordinator.h"
#include "server/coordinator_flags.h"
#include "server/logging.h"

namespace {

using ithaca::server::Coordinator;
using ithaca::server::CoordinatorExit;
using ithaca::server::CoordinatorFlags;
using ithaca::server::Log;

sigset_t TerminationSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Why the process is to end: the first reason that anyone gives. Thread-safe.
class Ending {
 public:
  // failure: what went wrong; empty if it was asked to end.
  void Request(const std::string& failure) {
    const absl::MutexLock lock(&mutex_);
    if (!failure_.has_value()) failure_ = failure;
  }
  std::string Await() {
    const absl::MutexLock lock(&mutex_);
    const auto requested = [this] { return failure_.has_value(); };
    mutex_.Await(absl::Condition(&requested));
    return *failure_;
  }

 private:
  absl::Mutex mutex_;
  std::optional<std::string> failure_ ABSL_GUARDED_BY(mutex_);
};

// The first signal asks for the end; the second ends the process. Local workers
// end with it.
void WatchSignals(Ending* ending) {
  const sigset_t signals = TerminationSignals();
  int signal = 0;
  sigwait(&signals, &signal);
  Log(spdlog::level::info, "draining", {{"signal", int64_t{signal}}});
  ending->Request("");
  sigwait(&signals, &signal);
  Log(spdlog::level::warn, "ended by a second signal");
  std::_Exit(128 + signal);
}

// Libraries' own words go to the log in its form.
void TakeOverLibraryLogs() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    Log(args->severity == GPR_LOG_SEVERITY_ERROR ? spdlog::level::warn
                                                 : spdlog::level::debug,
        "grpc", {{"text", args->message}});
  });
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel, const char*,
                                     int, const std::string& message) {
    Log(spdlog::level::debug, "protobuf", {{"text", message}});
  });
}

int CannotStart(const CoordinatorFlags& flags, const std::string& why) {
  Log(spdlog::level::err, "cannot start", {{"error", why}});
  // Never without a word.
  if (flags.log_level == spdlog::level::off) {
    std::cerr << "ithaca-coordinator: cannot start: " << why << "\n";
  }
  return 1;
}

int Run(const CoordinatorFlags& flags, Ending* ending) {
  auto coordinator = Coordinator::Start(
      flags, [ending](const std::string& why) { ending->Request(why); });
  if (!coordinator.ok()) {
    return CannotStart(flags, std::string(coordinator.status().message()));
  }
  const std::string failure = ending->Await();
  if (!failure.empty()) {
    (*coordinator)->Shutdown(absl::Now());
    return CannotStart(flags, failure);
  }
  (*coordinator)->Shutdown(absl::Now() + flags.drain_timeout);
  Log(spdlog::level::info, "ended");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // Before any thread is there, so that all inherit it: the signals are for
  // WatchSignals alone, from the first moment on.
  const sigset_t signals = TerminationSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  // Debian builds absl for debugging: each lock, gRPC's too, would be entered
  // in a graph to find deadlocks.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);

  const auto parsed = ithaca::server::ParseCoordinatorFlags(argc, argv);
  if (const auto* exit = std::get_if<CoordinatorExit>(&parsed)) {
    (exit->code == 0 ? std::cout : std::cerr) << exit->text;
    return exit->code;
  }
  const auto& flags = std::get<CoordinatorFlags>(parsed);
  ithaca::server::StartLogging(flags.log_format, flags.log_level);
  TakeOverLibraryLogs();

  ithaca::server::KeepCallbackQueue();

  // Lives for as long as the process; the thread may be waiting for a second
  // signal when main returns.
  auto* const ending = new Ending;
  std::thread(WatchSignals, ending).detach();
  const int code = Run(flags, ending);
  // Not by return: the thread of signals still runs, and must not see the
  // process's globals destroyed.
  std::fflush(nullptr);
  std::_Exit(code);
}
