#ifndef ITHACA_WORKER_WORKER_FLAGS_H_
#define ITHACA_WORKER_WORKER_FLAGS_H_

#include <optional>
#include <string>
#include <variant>

#include "absl/time/time.h"
#include "worker/logging.h"

namespace ithaca {

// What `ithaca-worker` can be told; WorkerFlags' help texts explain each.
struct WorkerFlags {
  std::string coordinator;
  std::string device = "cpu";
  std::string listen = "0.0.0.0:0";
  std::string metrics_listen;  // empty: none
  int threads = 0;             // 0: all of the processor's
  std::string peer_address;    // empty: the one that reaches the coordinator
  std::string peer_interface;
  std::string auth_token_file;  // empty: none is sent or asked for
  std::string warm_shapes;      // a file; empty: none
  std::string nccl_host_id;     // for tests; empty: NCCL's own
  std::optional<int> local_slot;
  std::optional<int> exit_with_parent;  // the parent's pid
  absl::Duration drain_timeout = absl::Seconds(30);
  LogFormat log_format = LogFormat::kText;
  std::string log_level = "info";
  absl::Duration injected_vote_delay = absl::ZeroDuration();
};

// The process is to print this and exit.
struct WorkerExit {
  int code = 0;
  std::string text;  // ends with a newline
};

// From the command line, the environment (ITHACA_WORKER_...) and the file of
// --config, the first of these that has a value.
std::variant<WorkerFlags, WorkerExit> ParseWorkerFlags(int argc,
                                                       const char* const* argv);

}  // namespace ithaca

#endif  // ITHACA_WORKER_WORKER_FLAGS_H_
