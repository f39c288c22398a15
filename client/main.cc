// `ithaca`: the command line of the attention service.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>

#include "client/cli/attend_command.h"
#include "client/cli/bench_command.h"
#include "client/cli/exit_code.h"
#include "client/cli/info_command.h"
#include "client/cli/version.h"

int main(int argc, char** argv) {
  using namespace ithaca::client;  // NOLINT(google-build-using-namespace)
  CLI::App app(
      "Calls an Ithaca server: attention of diffusion transformers, "
      "split over several workers.",
      "ithaca");
  app.set_version_flag("--version", std::string("ithaca ") + kVersion);
  app.require_subcommand(1);
  app.footer(kExitCodeHelp);

  AttendFlags attend_flags;
  CLI::App* attend = app.add_subcommand(
      "attend", "Make one attention call and show where its time went");
  AddAttendFlags(attend, &attend_flags);
  attend->footer(kExitCodeHelp);

  InfoFlags info_flags;
  CLI::App* info = app.add_subcommand(
      "info", "Show what the server can do, its groups and its health");
  AddInfoFlags(info, &info_flags);
  info->footer(kExitCodeHelp);

  BenchFlags bench_flags;
  CLI::App* bench = app.add_subcommand(
      "bench", "Make many calls and show latency, rate and stages");
  AddBenchFlags(bench, &bench_flags);
  bench->footer(kExitCodeHelp);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kSuccess : kUsage;
  }
  if (*attend) return RunAttend(attend_flags, std::cout, std::cerr);
  if (*info) return RunInfo(info_flags, std::cout, std::cerr);
  return RunBench(bench_flags, isatty(STDERR_FILENO) != 0, std::cout,
                  std::cerr);
}
