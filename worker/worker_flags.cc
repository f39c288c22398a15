#include "worker/worker_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <istream>
#include <memory>
#include <string>
#include <vector>

#include "core/version.h"

namespace ithaca {
namespace {

constexpr char kDescription[] =
    "One worker of an Ithaca service: holds one rank of one attention group, "
    "on one device.\n"
    "It dials the coordinator, is given a place in a group, exchanges heads "
    "and tokens with\n"
    "the other ranks of each call, and leaves the group when it ends.\n";

constexpr char kFooter[] =
    "Each flag may also come from the environment, as ITHACA_WORKER_ and the "
    "flag's name in\n"
    "capitals with underscores (ITHACA_WORKER_LOG_LEVEL), or from the file of "
    "--config, a line\n"
    "`log-level=\"debug\"` each. The command line wins, then the "
    "environment.\n\n"
    "SIGTERM: running calls are finished, then it exits with 0. A second one "
    "ends it at once.\n"
    "If it cannot start or is refused by the coordinator, it says why in one "
    "line and exits\n"
    "with 1; with 2 if a flag is wrong, or names what this host does not "
    "have.\n\n"
    "Examples:\n"
    "  ithaca-worker --coordinator=localhost:50051\n"
    "  ithaca-worker --coordinator=ithaca:50051 --device=cuda:0 "
    "--metrics-listen=0.0.0.0:9401\n";

// "--log-level" is "ITHACA_WORKER_LOG_LEVEL" in the environment.
std::string EnvironmentName(const std::string& flag) {
  std::string name = "ITHACA_WORKER_" + flag;
  for (char& c : name) {
    c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  }
  return name;
}

// CLI11 lets the file win over the environment; here it gives way.
class ConfigBelowEnvironment : public CLI::ConfigTOML {
 public:
  std::vector<CLI::ConfigItem> from_config(std::istream& file) const override {
    std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(file);
    items.erase(std::remove_if(items.begin(), items.end(),
                               [](const CLI::ConfigItem& item) {
                                 const char* set = std::getenv(
                                     EnvironmentName(item.name).c_str());
                                 return set != nullptr && *set != '\0';
                               }),
                items.end());
    return items;
  }
};

template <typename T>
CLI::Option* Add(CLI::App* app, const std::string& flag, T* value,
                 const std::string& help) {
  return app->add_option("--" + flag, *value, help)
      ->envname(EnvironmentName(flag))
      // The supervisor of local workers appends its operator's flags to its
      // own.
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

}  // namespace

std::variant<WorkerFlags, WorkerExit> ParseWorkerFlags(
    int argc, const char* const* argv) {
  WorkerFlags flags;
  int local_slot = 0;
  int parent = 0;
  double drain_timeout = absl::ToDoubleSeconds(flags.drain_timeout);
  int vote_delay_ms = 0;
  std::string log_format = "text";

  CLI::App app(kDescription, "ithaca-worker");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string(Version()));
  // CLI11 opens the file before it looks at the environment.
  const std::string variable = EnvironmentName("config");
  const char* set = std::getenv(variable.c_str());
  const std::string file = set == nullptr ? "" : set;
  app.set_config("--config", file, "Read flags from this file (TOML).",
                 /*config_required=*/!file.empty())
      ->envname(variable);
  app.config_formatter(std::make_shared<ConfigBelowEnvironment>());
  app.allow_config_extras(CLI::config_extras_mode::error);

  Add(&app, "coordinator", &flags.coordinator,
      "The coordinator to join. Dialled again, for ever, while it is not "
      "there.")
      ->required()
      ->type_name("HOST:PORT");
  Add(&app, "device", &flags.device,
      "What to compute on: cpu, or cuda:N for GPU N of those that CUDA shows "
      "to this process.")
      ->type_name("DEVICE")
      ->capture_default_str();
  Add(&app, "listen", &flags.listen,
      "Where to take calls from the coordinator. Port 0 takes a free one; with "
      "0.0.0.0 or [::] the coordinator calls back where it sees this worker.")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  Add(&app, "metrics-listen", &flags.metrics_listen,
      "Where to answer HTTP GET /metrics (Prometheus: this rank's stage times) "
      "and /livez. Empty: nowhere.")
      ->type_name("HOST:PORT");
  Add(&app, "threads", &flags.threads,
      "Threads that attention on the CPU uses. 0: as many as there are cores; "
      "divide them when several workers share a host.")
      ->type_name("N")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  CLI::Option* address =
      Add(&app, "peer-address", &flags.peer_address,
          "Host name or address of this host at which the other CPU ranks "
          "reach it. Default: the one from which it reaches the coordinator.")
          ->type_name("HOST");
  Add(&app, "peer-interface", &flags.peer_interface,
      "The same by network interface, such as eth0.")
      ->type_name("NAME")
      ->excludes(address);
  Add(&app, "auth-token-file", &flags.auth_token_file,
      "A file with the coordinator's token: sent to it, and asked of whoever "
      "calls this worker.")
      ->type_name("PATH");
  Add(&app, "warm-shapes", &flags.warm_shapes,
      "File of calls to prepare for before this worker's group is ready, one a "
      "line: image-tokens=4096 text-tokens=512 heads=24 head-dim=128 and so "
      "on, words as the flags of `ithaca attend`. On a GPU a call of a shape "
      "not seen before takes about 40 ms more.")
      ->type_name("FILE");
  Add(&app, "nccl-host-id", &flags.nccl_host_id,
      "For tests only: what NCCL takes for this host, so that workers with "
      "different ones can share a GPU, slowly.")
      ->type_name("NAME");
  CLI::Option* slot =
      Add(&app, "local-slot", &local_slot,
          "Set by a coordinator for the workers it starts itself: which of "
          "them this is, so that it can replace it when it freezes.")
          ->type_name("N")
          ->check(CLI::Range(0, 65535));
  CLI::Option* with_parent =
      Add(&app, "exit-with-parent", &parent,
          "Be killed when the process of this pid, which must be the one that "
          "started this worker, ends.")
          ->type_name("PID")
          ->check(CLI::PositiveNumber);
  Add(&app, "drain-timeout-seconds", &drain_timeout,
      "Seconds that running calls have to finish after SIGTERM.")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  Add(&app, "log-format", &log_format,
      "Shape of the lines on stderr: text or json.")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  Add(&app, "log-level", &flags.log_level,
      "The least that is logged: trace, debug, info, warning, error, critical "
      "or off.")
      ->type_name("LEVEL")
      ->check(CLI::IsMember(
          {"trace", "debug", "info", "warning", "error", "critical", "off"}))
      ->capture_default_str();
  Add(&app, "inject-delay-before-exchange-ms", &vote_delay_ms,
      "For tests of faults only: makes this rank late by so much in every "
      "call.")
      ->type_name("MS")
      ->check(CLI::Range(0, 600000));

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return WorkerExit{0, app.help()};
  } catch (const CLI::CallForVersion&) {
    return WorkerExit{0, std::string(Version()) + "\n"};
  } catch (const CLI::ParseError& error) {
    std::string line = error.what();
    std::replace(line.begin(), line.end(), '\n', ' ');
    return WorkerExit{2, "ithaca-worker: " + line + " (see --help)\n"};
  }
  if (slot->count() > 0) flags.local_slot = local_slot;
  if (with_parent->count() > 0) flags.exit_with_parent = parent;
  flags.log_format = log_format == "json" ? LogFormat::kJson : LogFormat::kText;
  flags.drain_timeout = absl::Seconds(drain_timeout);
  flags.injected_vote_delay = absl::Milliseconds(vote_delay_ms);
  return flags;
}

}  // namespace ithaca
