#include "client/cli/bench_command.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/bench_summary.h"
#include "client/cli/exit_code.h"
#include "client/cli/progress_bar.h"
#include "client/cli/random_call.h"

namespace ithaca::client {
namespace {

constexpr double kDefaultDurationSeconds = 10;

LoadOptions MakeLoadOptions(const BenchFlags& flags) {
  LoadOptions options{
      .concurrency = flags.concurrency,
      .calls = flags.calls,
      .call_timeout = absl::Seconds(flags.connection.timeout_seconds),
      .allocated = flags.allocated};
  if (flags.duration_seconds || !flags.calls) {
    options.duration =
        absl::Seconds(flags.duration_seconds.value_or(kDefaultDurationSeconds));
  }
  return options;
}

LoadResult RunShown(Client* client, const AttentionArguments& call,
                    const LoadOptions& options, const char* what,
                    bool show_progress, std::ostream& err) {
  ProgressBar bar(err, show_progress);
  return RunLoad(client, call, options, [&](const LoadProgress& progress) {
    bar.Update(progress.fraction,
               absl::StrFormat("%s: %d calls, %d failed", what, progress.calls,
                               progress.failures));
  });
}

}  // namespace

void AddBenchFlags(CLI::App* command, BenchFlags* flags) {
  AddConnectionFlags(command, &flags->connection);
  AddPlaneFlag(command, &flags->connection);
  AddCallFlags(command, &flags->call);
  command
      ->add_option("--concurrency", flags->concurrency,
                   "Calls in flight at any time")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--calls", flags->calls, "End after so many calls")
      ->check(CheckAboveZero);
  command
      ->add_option("--duration-seconds", flags->duration_seconds,
                   "End after so long (default: 10, if --calls is not given)")
      ->check(CheckAboveZero);
  command
      ->add_option("--warm-up-calls", flags->warm_up_calls,
                   "Calls made before the measured ones")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--allocated", flags->allocated,
                    "Have the tensors in shared memory before a call begins: "
                    "nothing is copied");
  command->add_flag("--json", flags->json, "Print JSON");
}

int RunBench(const BenchFlags& flags, bool show_progress, std::ostream& out,
             std::ostream& err) {
  const CallShape shape = flags.call.Shape();
  auto call =
      MakeRandomCall(shape, flags.call.seed, flags.connection.LargestRequest());
  if (!call.ok()) {
    err << "ithaca: " << call.status().message() << '\n';
    return kUsage;
  }
  call->options = flags.call.Options();
  const auto client = Client::Connect(flags.connection.Options(err));
  if (!client.ok()) return ReportCallError(client.status(), err);

  const LoadOptions options = MakeLoadOptions(flags);
  if (flags.warm_up_calls > 0) {
    LoadOptions warm_up = options;
    warm_up.calls = flags.warm_up_calls;
    warm_up.duration.reset();
    warm_up.max_failures = 1;
    const LoadResult result =
        RunShown(client->get(), *call, warm_up, "warm-up", show_progress, err);
    if (!result.failures.empty()) {
      return ReportCallError(result.first_failure, err);
    }
  }
  const LoadResult result =
      RunShown(client->get(), *call, options, "measuring", show_progress, err);

  if (result.samples.empty() && result.failures.empty()) {
    err << "ithaca: no call was begun in the time given\n";
    return kUsage;
  }
  if (!result.samples.empty()) {
    const BenchSummary summary = SummarizeLoad(result, *TotalBytes(shape));
    if (flags.json) {
      nlohmann::ordered_json json = {{"shape", shape.Text()},
                                     {"concurrency", flags.concurrency},
                                     {"allocated", flags.allocated},
                                     {"failed_calls", result.NumFailures()}};
      json.update(SummaryJson(summary));
      out << json.dump(2) << '\n';
    } else {
      out << shape.Text() << "; " << flags.concurrency << " in flight\n";
      PrintSummary(summary, out);
    }
  }
  if (result.failures.empty()) return kSuccess;
  for (const auto& [code, count] : result.failures) {
    err << "ithaca: " << count << " calls ended with "
        << absl::StatusCodeToString(code) << "; the first failure:\n";
  }
  return ReportCallError(result.first_failure, err);
}

}  // namespace ithaca::client
