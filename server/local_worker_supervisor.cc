#include "server/local_worker_supervisor.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "server/worker_process.h"

namespace ithaca::server {
namespace {

absl::Time MonotonicNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

// All process work happens on thread_: the kernel ties a child's parent-death
// signal to the thread that started it, and only one that also reaps can kill
// by pid without hitting a stranger.
class LocalWorkerSupervisor::Core {
 public:
  explicit Core(LocalWorkerOptions options)
      : options_(std::move(options)),
        wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        slots_(static_cast<size_t>(std::max(options_.workers, 0))) {}

  ~Core() {
    Stop();
    close(wake_fd_);
  }

  absl::Status Start() {
    absl::StatusOr<std::string> binary =
        FindWorkerBinary(options_.worker_binary);
    if (!binary.ok()) return binary.status();
    binary_ = *std::move(binary);
    absl::Status first;
    absl::Notification started;
    thread_ = std::thread([&] {
      first = StartAll();
      const bool run = first.ok();
      started.Notify();  // the caller's variables are gone after this
      if (run) Supervise();
    });
    started.WaitForNotification();
    if (!first.ok()) thread_.join();
    return first;
  }

  void KillSlot(int slot) {
    {
      absl::MutexLock lock(&mutex_);
      to_kill_.insert(slot);
    }
    Wake();
  }

  void StopRestarting() {
    absl::MutexLock lock(&mutex_);
    restarting_ = false;
  }

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      restarting_ = false;
      stopping_ = true;
    }
    Wake();
    absl::MutexLock lock(&join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

  std::vector<pid_t> Pids() const {
    absl::MutexLock lock(&mutex_);
    std::vector<pid_t> pids;
    for (const Slot& slot : slots_) pids.push_back(slot.pid);
    return pids;
  }

 private:
  struct Slot {
    pid_t pid = 0;  // written under mutex_ by thread_ only
    int pidfd = -1;
    absl::Time started;
    absl::Duration restart_delay = absl::ZeroDuration();
    absl::Time restart_at = absl::InfiniteFuture();
    bool ended_before = false;
  };

  bool Restarting() const {
    absl::MutexLock lock(&mutex_);
    return restarting_;
  }

  void Wake() {
    const uint64_t one = 1;
    // Fails only when it is full of wake-ups already.
    [[maybe_unused]] ssize_t written = write(wake_fd_, &one, sizeof(one));
  }

  std::vector<std::string> Arguments(size_t index) const {
    std::vector<std::string> arguments = {
        binary_,
        absl::StrCat("--coordinator=", options_.coordinator_address),
        options_.device == "cuda" ? absl::StrCat("--device=cuda:", index)
                                  : absl::StrCat("--device=", options_.device),
        "--listen=127.0.0.1:0",
        absl::StrCat("--local-slot=", index),
        absl::StrCat("--exit-with-parent=", getpid())};
    if (options_.device == "cpu") {
      const size_t cores = std::max(1u, std::thread::hardware_concurrency());
      arguments.push_back(absl::StrCat(
          "--threads=", std::max<size_t>(1, cores / slots_.size())));
    }
    arguments.insert(arguments.end(), options_.worker_arguments.begin(),
                     options_.worker_arguments.end());
    return arguments;
  }

  absl::Status StartSlot(size_t index) {
    Slot& slot = slots_[index];
    slot.restart_at = absl::InfiniteFuture();
    absl::StatusOr<pid_t> pid = SpawnWorker(Arguments(index));
    if (!pid.ok()) return pid.status();
    const int pidfd = OpenProcess(*pid);
    if (pidfd < 0) {
      const int error = errno;
      kill(*pid, SIGKILL);
      waitpid(*pid, nullptr, 0);
      return absl::InternalError(
          absl::StrCat("cannot watch a worker process: ", strerror(error)));
    }
    slot.pidfd = pidfd;
    slot.started = MonotonicNow();
    absl::MutexLock lock(&mutex_);
    slot.pid = *pid;
    return absl::OkStatus();
  }

  absl::Status StartAll() {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (absl::Status status = StartSlot(i); !status.ok()) {
        SignalAll(SIGKILL);
        for (size_t j = 0; j < i; ++j) Reap(j);
        return status;
      }
    }
    return absl::OkStatus();
  }

  void SignalAll(int signal) {
    for (const Slot& slot : slots_) {
      if (slot.pid != 0) kill(slot.pid, signal);
    }
  }

  int Reap(size_t index) {
    Slot& slot = slots_[index];
    int status = 0;
    while (waitpid(slot.pid, &status, 0) < 0 && errno == EINTR) {
    }
    close(slot.pidfd);
    slot.pidfd = -1;
    absl::MutexLock lock(&mutex_);
    slot.pid = 0;
    return status;
  }

  void ScheduleRestart(Slot* slot, absl::Time lived_since) {
    const absl::Time now = MonotonicNow();
    const bool was_healthy =
        now - lived_since >= options_.longest_restart_delay;
    slot->restart_delay =
        was_healthy || slot->restart_delay == absl::ZeroDuration()
            ? options_.first_restart_delay
            : std::min(slot->restart_delay * 2, options_.longest_restart_delay);
    slot->restart_at = now + slot->restart_delay;
  }

  void OnExit(size_t index) {
    Slot& slot = slots_[index];
    const pid_t pid = slot.pid;
    const int status = Reap(index);
    const std::string how = DescribeExit(status);
    if (!Restarting()) return;
    if (!std::exchange(slot.ended_before, true) && NoRestartMends(status)) {
      if (options_.on_unusable) {
        options_.on_unusable(absl::StrCat(
            "local worker ", index, " ", how,
            ": it cannot run with its flags on this host, as it said above"));
      }
      return;
    }
    ScheduleRestart(&slot, slot.started);
    spdlog::warn("local worker {} (pid {}) {}; starting it again in {}", index,
                 pid, how, absl::FormatDuration(slot.restart_delay));
  }

  // Waits until a worker ends, someone wakes it, or `until`; handles the ends.
  void AwaitChange(absl::Time until) {
    std::vector<pollfd> polled = {{wake_fd_, POLLIN, 0}};
    std::vector<size_t> polled_slot = {0};
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].pid == 0) continue;
      polled.push_back({slots_[i].pidfd, POLLIN, 0});
      polled_slot.push_back(i);
    }
    int timeout_ms = -1;
    if (until != absl::InfiniteFuture()) {
      const absl::Duration wait = until - MonotonicNow();
      // Rounded up: a deadline is past when the wait for it ends.
      timeout_ms = static_cast<int>(std::clamp<int64_t>(
          absl::ToInt64Milliseconds(wait + absl::Microseconds(999)), 0,
          int64_t{60} * 1000));
    }
    if (poll(polled.data(), polled.size(), timeout_ms) <= 0) return;
    uint64_t wakes = 0;
    [[maybe_unused]] ssize_t got = read(wake_fd_, &wakes, sizeof(wakes));
    for (size_t i = 1; i < polled.size(); ++i) {
      if (polled[i].revents != 0) OnExit(polled_slot[i]);
    }
  }

  void Supervise() {
    while (true) {
      std::set<int> kills;
      bool stopping = false;
      {
        absl::MutexLock lock(&mutex_);
        stopping = stopping_;
        kills.swap(to_kill_);
      }
      if (stopping) break;
      for (int index : kills) {
        if (index < 0 || static_cast<size_t>(index) >= slots_.size()) continue;
        if (slots_[index].pid == 0) continue;
        spdlog::warn("killing local worker {} (pid {}): it does not answer",
                     index, slots_[index].pid);
        kill(slots_[index].pid, SIGKILL);
      }
      absl::Time next = absl::InfiniteFuture();
      for (size_t i = 0; i < slots_.size(); ++i) {
        if (slots_[i].restart_at <= MonotonicNow()) {
          if (!Restarting()) {
            slots_[i].restart_at = absl::InfiniteFuture();
          } else if (absl::Status status = StartSlot(i); !status.ok()) {
            spdlog::error("local worker {}: {}", i,
                          std::string(status.message()));
            ScheduleRestart(&slots_[i], absl::InfiniteFuture());
          }
        }
        next = std::min(next, slots_[i].restart_at);
      }
      AwaitChange(next);
    }

    SignalAll(SIGTERM);
    const absl::Time limit = MonotonicNow() + options_.stop_timeout;
    auto any_left = [this] {
      return std::any_of(slots_.begin(), slots_.end(),
                         [](const Slot& slot) { return slot.pid != 0; });
    };
    while (any_left() && MonotonicNow() < limit) {
      AwaitChange(limit);
    }
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].pid == 0) continue;
      spdlog::warn(
          "killing local worker {} (pid {}): still there {} after "
          "SIGTERM",
          i, slots_[i].pid, absl::FormatDuration(options_.stop_timeout));
      kill(slots_[i].pid, SIGKILL);
      Reap(i);
    }
  }

  const LocalWorkerOptions options_;
  const int wake_fd_;
  std::string binary_;

  mutable absl::Mutex mutex_;
  bool restarting_ ABSL_GUARDED_BY(mutex_) = true;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<int> to_kill_ ABSL_GUARDED_BY(mutex_);
  // thread_'s own, but for the pids.
  std::vector<Slot> slots_;

  absl::Mutex join_mutex_;
  std::thread thread_;
};

LocalWorkerSupervisor::LocalWorkerSupervisor(LocalWorkerOptions options)
    : core_(std::make_unique<Core>(std::move(options))) {}

LocalWorkerSupervisor::~LocalWorkerSupervisor() = default;

absl::Status LocalWorkerSupervisor::Start() { return core_->Start(); }

void LocalWorkerSupervisor::KillSlot(int slot) { core_->KillSlot(slot); }

void LocalWorkerSupervisor::StopRestarting() { core_->StopRestarting(); }

void LocalWorkerSupervisor::Stop() { core_->Stop(); }

std::vector<pid_t> LocalWorkerSupervisor::Pids() const { return core_->Pids(); }

}  // namespace ithaca::server
