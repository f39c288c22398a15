#ifndef ITHACA_SERVER_WORKER_PROCESS_H_
#define ITHACA_SERVER_WORKER_PROCESS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"

// What the supervisor of local workers asks of the system: one process.

namespace ithaca::server {

// How `ithaca-worker` ends when its flags, or what they name on this host,
// cannot be used. Its own words are on stderr by then.
inline constexpr int kUnusableExitCode = 2;

// The path of `ithaca-worker`: `wanted` if not empty, else beside the running
// executable, else ../worker/ from there. kNotFound, naming where it looked.
absl::StatusOr<std::string> FindWorkerBinary(const std::string& wanted);

// Starts `arguments[0]` in a process group of its own, so that a Ctrl-C meant
// for the coordinator reaches the workers only through it. It inherits stdout
// and stderr. Errors: kInternal.
absl::StatusOr<pid_t> SpawnWorker(const std::vector<std::string>& arguments);

// A descriptor that is readable once the process has ended; -1 and errno.
int OpenProcess(pid_t pid);

// A wait status in words: "exited with code 1".
std::string DescribeExit(int status);

// Whether a process that ended so said that no other would fare better: with
// kUnusableExitCode, or as the loader does that misses a library.
bool NoRestartMends(int status);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_WORKER_PROCESS_H_
