#ifndef ITHACA_CLIENT_CLI_BENCH_COMMAND_H_
#define ITHACA_CLIENT_CLI_BENCH_COMMAND_H_

#include <cstdint>
#include <optional>
#include <ostream>

#include "client/cli/call_flags.h"
#include "client/cli/connection_flags.h"

namespace ithaca::client {

struct BenchFlags {
  ConnectionFlags connection = {};
  CallFlags call = {};
  int concurrency = 1;
  std::optional<int64_t> calls = {};
  std::optional<double> duration_seconds = {};
  int64_t warm_up_calls = 10;
  bool allocated = false;
  bool json = false;
};

// `flags` outlives the parsing.
void AddBenchFlags(CLI::App* command, BenchFlags* flags);

// Runs the load and prints the measurements; an ExitCode. A progress bar goes
// to `err` where `show_progress`.
int RunBench(const BenchFlags& flags, bool show_progress, std::ostream& out,
             std::ostream& err);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_BENCH_COMMAND_H_
