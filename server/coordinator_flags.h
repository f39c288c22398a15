#ifndef ITHACA_SERVER_COORDINATOR_FLAGS_H_
#define ITHACA_SERVER_COORDINATOR_FLAGS_H_

#include <spdlog/common.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "server/logging.h"

namespace ithaca::server {

// What an operator sets; each has the flag of its name in coordinator_flags.cc.
struct CoordinatorFlags {
  std::string listen = "127.0.0.1:50051";
  std::string metrics_listen = "127.0.0.1:9400";
  int group_size = 0;  // set by ParseCoordinatorFlags if it was not given
  int local_workers = 0;
  std::string device = "cpu";
  std::string worker_binary;
  std::vector<std::string> worker_flags;
  std::string auth_token_file;
  bool allow_shared_memory = false;
  bool allow_cuda_memory = false;
  int64_t max_message_bytes = int64_t{1} << 30;
  int64_t max_request_bytes = int64_t{4} << 30;
  int64_t max_inflight_bytes = int64_t{8} << 30;
  int max_queued_requests = 256;
  int calls_in_flight = 2;
  absl::Duration collective_timeout = absl::Seconds(30);
  absl::Duration formation_timeout = absl::Seconds(15);
  absl::Duration drain_timeout = absl::Seconds(30);
  absl::Duration stream_idle_timeout = absl::Seconds(60);
  LogFormat log_format = LogFormat::kText;
  spdlog::level::level_enum log_level = spdlog::level::info;
};

// The program has nothing to do but print this and end: --help, --version, or
// a flag that is wrong.
struct CoordinatorExit {
  int code = 0;
  std::string text;
};

// From the command line, else the environment, else the file of --config.
std::variant<CoordinatorFlags, CoordinatorExit> ParseCoordinatorFlags(
    int argc, const char* const* argv);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_COORDINATOR_FLAGS_H_
