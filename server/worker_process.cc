#include "server/worker_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ithaca::server {
namespace {

namespace fs = std::filesystem;

// A shell's and the dynamic loader's: a program or a library is missing.
constexpr int kNotLoadedExitCode = 127;

}  // namespace

absl::StatusOr<std::string> FindWorkerBinary(const std::string& wanted) {
  std::vector<fs::path> candidates;
  if (!wanted.empty()) {
    candidates.push_back(wanted);
  } else {
    std::error_code error;
    const fs::path here =
        fs::read_symlink("/proc/self/exe", error).parent_path();
    candidates.push_back(here / "ithaca-worker");
    candidates.push_back(here.parent_path() / "worker" / "ithaca-worker");
  }
  std::string looked;
  for (const fs::path& candidate : candidates) {
    if (fs::is_regular_file(candidate) &&
        access(candidate.c_str(), X_OK) == 0) {
      return candidate.string();
    }
    absl::StrAppend(&looked, looked.empty() ? "" : ", ", candidate.string());
  }
  return absl::NotFoundError(
      absl::StrCat("no executable worker binary; looked at: ", looked));
}

int OpenProcess(pid_t pid) {
  // glibc 2.36 declares its wrapper without C linkage: C++ cannot call it.
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

std::string DescribeExit(int status) {
  if (WIFEXITED(status)) {
    return absl::StrCat("exited with code ", WEXITSTATUS(status));
  }
  if (WIFSIGNALED(status)) {
    return absl::StrCat("was killed by signal ", WTERMSIG(status));
  }
  return absl::StrCat("ended with wait status ", status);
}

bool NoRestartMends(int status) {
  return WIFEXITED(status) && (WEXITSTATUS(status) == kUnusableExitCode ||
                               WEXITSTATUS(status) == kNotLoadedExitCode);
}

absl::StatusOr<pid_t> SpawnWorker(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null",
                                   O_RDONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP |
                                            POSIX_SPAWN_SETSIGMASK |
                                            POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::InternalError(
        absl::StrCat("cannot start ", arguments[0], ": ", strerror(error)));
  }
  return pid;
}

}  // namespace ithaca::server
