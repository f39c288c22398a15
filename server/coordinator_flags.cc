#include "server/coordinator_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <istream>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/version.h"
#include "server/logging.h"

namespace ithaca::server {

namespace {

constexpr char kDescription[] =
    "The coordinator of an Ithaca service: takes attention calls, splits each "
    "over a group\nof workers by sequence, and answers with what they "
    "computed.\n";

constexpr char kFooter[] =
    "Each flag may also come from the environment, as ITHACA_ and the flag's "
    "name in capitals\nwith underscores (ITHACA_LOG_LEVEL), or from the file "
    "of --config, a line\n`log-level=\"debug\"` each. The command line wins, "
    "then the environment. Sizes may have a\nunit: 512MiB.\n\n"
    "SIGTERM: not ready first, then no new calls; running ones finish within "
    "--drain-timeout-seconds,\nand it exits with 0. A second one ends it at "
    "once. If it cannot start, it says why in\none line and exits with 1; "
    "with 2 if a flag is wrong.\n\n"
    "Examples:\n"
    "  ithaca-coordinator --local-workers=4\n"
    "  ithaca-coordinator --listen=0.0.0.0:50051 "
    "--metrics-listen=0.0.0.0:9400 --group-size=8\n";

constexpr double kLongestTimeoutSeconds = 86400;

// Not CLI::Range, which NaN passes.
std::function<std::string(const std::string&)> CheckSeconds(double least) {
  return [least](const std::string& text) -> std::string {
    double seconds = 0;
    if (absl::SimpleAtod(text, &seconds) && seconds >= least &&
        seconds <= kLongestTimeoutSeconds) {
      return "";
    }
    return absl::StrCat("expected ", least, " to ", kLongestTimeoutSeconds,
                        " seconds, got ", text);
  };
}

// gRPC takes a port modulo 65536.
std::string CheckPort(const std::string& address) {
  int port = 0;
  if (absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port) &&
      port >= 0 && port <= 65535) {
    return "";
  }
  return absl::StrCat("expected HOST:PORT with a port of 0 to 65535, got ",
                      address);
}

// "--log-level" is "ITHACA_LOG_LEVEL" in the environment.
std::string EnvironmentName(const std::string& flag) {
  std::string name = "ITHACA_" + flag;
  for (char& c : name) {
    c = c == '-'
            ? '_'
            : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
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

class Parser {
 public:
  Parser() : app_(kDescription, "ithaca-coordinator") {
    app_.footer(kFooter);
    app_.set_version_flag("--version", std::string(Version()));
    // CLI11 opens the file before it looks at the environment.
    const std::string variable = EnvironmentName("config");
    const char* set = std::getenv(variable.c_str());
    const std::string file = set == nullptr ? "" : set;
    app_.set_config("--config", file, "Read flags from this file (TOML).",
                    /*config_required=*/!file.empty())
        ->envname(variable);
    app_.config_formatter(std::make_shared<ConfigBelowEnvironment>());
    app_.allow_config_extras(CLI::config_extras_mode::error);
    AddPlaces();
    AddGroups();
    AddLimits();
    AddTimesAndLogs();
  }

  std::variant<CoordinatorFlags, CoordinatorExit> Parse(
      int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
      return CoordinatorExit{0, app_.help()};
    } catch (const CLI::CallForVersion&) {
      return CoordinatorExit{0, std::string(Version()) + "\n"};
    } catch (const CLI::FileError& error) {
      return CoordinatorExit{2, std::string("ithaca-coordinator: --config: ") +
                                    error.what() + "\n"};
    } catch (const CLI::ParseError& error) {
      std::string line = error.what();
      std::replace(line.begin(), line.end(), '\n', ' ');
      return CoordinatorExit{2,
                             "ithaca-coordinator: " + line + " (see --help)\n"};
    }
    if (flags_.group_size == 0) {
      flags_.group_size = std::max(1, flags_.local_workers);
    }
    flags_.collective_timeout = absl::Seconds(collective_timeout_);
    flags_.formation_timeout = absl::Seconds(formation_timeout_);
    flags_.drain_timeout = absl::Seconds(drain_timeout_);
    flags_.stream_idle_timeout = absl::Seconds(stream_idle_timeout_);
    flags_.log_format = *ParseLogFormat(log_format_);
    flags_.log_level = *ParseLogLevel(log_level_);
    return flags_;
  }

 private:
  template <typename T>
  CLI::Option* Add(const std::string& flag, T* value, const std::string& help) {
    CLI::Option* const option = app_.add_option("--" + flag, *value, help)
                                    ->envname(EnvironmentName(flag));
    // A wrapper's flags may be overridden by appending others.
    if constexpr (!std::is_same_v<T, std::vector<std::string>>) {
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
    return option;
  }

  void AddSwitch(const std::string& flag, bool* value,
                 const std::string& help) {
    app_.add_flag("--" + flag, *value, help)->envname(EnvironmentName(flag));
  }

  void AddPlaces() {
    Add("listen", &flags_.listen,
        "Where to take calls from clients and workers. Port 0 takes a free "
        "one.")
        ->type_name("HOST:PORT")
        ->check(CheckPort)
        ->capture_default_str();
    Add("metrics-listen", &flags_.metrics_listen,
        "Where to answer HTTP GET /metrics (Prometheus), /livez and /readyz.")
        ->type_name("ADDRESS:PORT")
        ->capture_default_str();
    Add("auth-token-file", &flags_.auth_token_file,
        "A file with the token that calls of clients and of workers must "
        "carry, as `authorization: Bearer TOKEN`; local workers are given it. "
        "Default: none is asked for.")
        ->type_name("PATH");
    AddSwitch("allow-shared-memory", &flags_.allow_shared_memory,
              "Take tensors from clients of this host in POSIX shared memory "
              "objects named /ithaca-*.");
    AddSwitch("allow-cuda-memory", &flags_.allow_cuda_memory,
              "Take tensors from clients of this host in GPU memory, by CUDA "
              "IPC. With --device=cuda.");
  }

  void AddGroups() {
    Add("group-size", &flags_.group_size,
        "Workers in a group: over how many devices a call is split. Default: "
        "--local-workers, or 1.")
        ->type_name("N")
        ->check(CLI::Range(1, 1024));
    Add("local-workers", &flags_.local_workers,
        "Start and supervise this many workers on this host. 0: workers dial "
        "in by themselves.")
        ->type_name("N")
        ->check(CLI::Range(0, 1024))
        ->capture_default_str();
    Add("device", &flags_.device,
        "What workers compute on: cpu, or cuda (local worker i takes GPU i).")
        ->type_name("DEVICE")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    Add("worker-binary", &flags_.worker_binary,
        "The ithaca-worker that --local-workers starts. Default: the one "
        "beside this program.")
        ->type_name("PATH");
    Add("worker-flag", &flags_.worker_flags,
        "A flag passed on to each local worker, such as "
        "--worker-flag=--threads=2. May be given several times.")
        ->type_name("FLAG");
    Add("calls-in-flight", &flags_.calls_in_flight,
        "Calls a group may have at one time: the next one's tensors travel "
        "while one is computed.")
        ->type_name("N")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
  }

  void AddBytes(const std::string& flag, int64_t* value, int64_t least,
                int64_t most, const std::string& help) {
    Add(flag, value, help)
        ->type_name("BYTES")
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
        ->check(CLI::Range(least, most))
        ->capture_default_str();
  }

  void AddLimits() {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    AddBytes("max-message-bytes", &flags_.max_message_bytes, 64 << 10,
             std::numeric_limits<int32_t>::max(),
             "The largest request or response message. A call with a larger "
             "one ends with RESOURCE_EXHAUSTED.");
    AddBytes("max-request-bytes", &flags_.max_request_bytes, 1, kMost,
             "All of one call's tensors, output included.");
    AddBytes("max-inflight-bytes", &flags_.max_inflight_bytes, 1, kMost,
             "Tensors of all calls together that are queued or running.");
    Add("max-queued-requests", &flags_.max_queued_requests,
        "Calls that may wait for a group; more end with RESOURCE_EXHAUSTED.")
        ->type_name("N")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
  }

  void AddTimesAndLogs() {
    const auto add_seconds = [this](const std::string& flag, double least,
                                    double* value, const std::string& help) {
      Add(flag, value, help)
          ->type_name("SECONDS")
          ->check(CheckSeconds(least))
          ->capture_default_str();
    };
    add_seconds("collective-timeout-seconds", 0.001, &collective_timeout_,
                "What ranks wait for each other in one exchange. A group that "
                "is late by more is lost and forms anew.");
    add_seconds("formation-timeout-seconds", 0.001, &formation_timeout_,
                "What the workers of a new group have to connect to each "
                "other.");
    add_seconds("drain-timeout-seconds", 0, &drain_timeout_,
                "What running calls have to finish after SIGTERM.");
    add_seconds(
        "stream-idle-timeout-seconds", 0.001, &stream_idle_timeout_,
        "How long a client of StreamAttention may send no chunk that is "
        "awaited, or not read its output, before it loses its call.");
    Add("log-format", &log_format_, "Shape of the lines on stderr.")
        ->type_name("FORMAT")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    Add("log-level", &log_level_,
        "The least that is logged, by local workers too.")
        ->type_name("LEVEL")
        ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
        ->capture_default_str();
  }

  CLI::App app_;
  CoordinatorFlags flags_;
  double collective_timeout_ =
      absl::ToDoubleSeconds(CoordinatorFlags().collective_timeout);
  double formation_timeout_ =
      absl::ToDoubleSeconds(CoordinatorFlags().formation_timeout);
  double drain_timeout_ =
      absl::ToDoubleSeconds(CoordinatorFlags().drain_timeout);
  double stream_idle_timeout_ =
      absl::ToDoubleSeconds(CoordinatorFlags().stream_idle_timeout);
  std::string log_format_ = "text";
  std::string log_level_ = "info";
};

}  // namespace

std::variant<CoordinatorFlags, CoordinatorExit> ParseCoordinatorFlags(
    int argc, const char* const* argv) {
  return Parser().Parse(argc, argv);
}

}  // namespace ithaca::server
