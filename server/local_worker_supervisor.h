#ifndef ITHACA_SERVER_LOCAL_WORKER_SUPERVISOR_H_
#define ITHACA_SERVER_LOCAL_WORKER_SUPERVISOR_H_

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ithaca::server {

struct LocalWorkerOptions {
  int workers = 0;             // processes; slots 0 .. workers - 1
  std::string device = "cpu";  // "cpu"; "cuda": slot i gets cuda:i
  // What the workers dial: "127.0.0.1:50051".
  std::string coordinator_address;
  // Empty: `ithaca-worker` beside this executable, or where Bazel puts it.
  std::string worker_binary;
  // Passed on as they are: {"--log-format=json"}.
  std::vector<std::string> worker_arguments;
  // Pause before a worker that exited is started again: the first, doubled
  // each time up to the longest, the first again once one has lived that long.
  absl::Duration first_restart_delay = absl::Milliseconds(100);
  absl::Duration longest_restart_delay = absl::Seconds(5);
  // What a worker has between SIGTERM and SIGKILL.
  absl::Duration stop_timeout = absl::Seconds(5);
  // Told, on the supervisor's thread, when a slot's first process ends in a
  // way that NoRestartMends: none is started in that slot then. May be empty.
  std::function<void(const std::string& why)> on_unusable;
};

// Starts `ithaca-worker` processes on this host and keeps that many running.
// One thread of its own starts them all and waits for them: the kernel ends
// them when that thread ends, so that no worker outlives a coordinator that
// was killed.
//
// Thread-safe.
class LocalWorkerSupervisor {
 public:
  explicit LocalWorkerSupervisor(LocalWorkerOptions options);
  ~LocalWorkerSupervisor();  // Stop()s
  LocalWorkerSupervisor(const LocalWorkerSupervisor&) = delete;
  LocalWorkerSupervisor& operator=(const LocalWorkerSupervisor&) = delete;

  // Returns once every worker was started (not joined). Errors: kNotFound (no
  // binary), kInternal (the system refused a process). Call it once.
  absl::Status Start();

  // SIGKILLs the slot's process; its successor is started as after any exit.
  // For a worker that does not answer any more. Never blocks.
  void KillSlot(int slot);

  // No worker that ends is started again from here on: before an orderly end.
  void StopRestarting();

  // SIGTERM to all, SIGKILL after stop_timeout to those that remain, and
  // waits for their end. None is started again. Idempotent.
  void Stop();

  // By slot; 0 where none runs at this moment.
  std::vector<pid_t> Pids() const;

 private:
  class Core;
  const std::unique_ptr<Core> core_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_LOCAL_WORKER_SUPERVISOR_H_
