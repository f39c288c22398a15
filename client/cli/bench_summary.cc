#include "client/cli/bench_summary.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/execution_report_text.h"
#include "client/cli/text_table.h"

namespace ithaca::client {
namespace {

template <typename Value>
Percentiles Over(const std::vector<CallSample>& samples, Value value) {
  std::vector<double> measurements;
  measurements.reserve(samples.size());
  for (const CallSample& sample : samples) {
    measurements.push_back(value(sample));
  }
  return Summarize(std::move(measurements));
}

nlohmann::ordered_json PercentilesJson(const Percentiles& p) {
  return {{"min", p.min}, {"mean", p.mean}, {"p50", p.p50},
          {"p90", p.p90}, {"p99", p.p99},   {"max", p.max}};
}

void AddPercentiles(const std::string& name, const Percentiles& p,
                    TextTable* table) {
  table->AddRow({name, SecondsText(p.p50), SecondsText(p.p90),
                 SecondsText(p.p99), SecondsText(p.max)});
}

}  // namespace

BenchSummary SummarizeLoad(const LoadResult& result, int64_t call_bytes) {
  const auto& samples = result.samples;
  BenchSummary summary;
  summary.calls = std::ssize(samples);
  summary.seconds = result.seconds;
  summary.calls_per_second =
      static_cast<double>(summary.calls) / result.seconds;
  summary.bytes_per_second =
      summary.calls_per_second * static_cast<double>(call_bytes);
  summary.client =
      Over(samples, [](const CallSample& s) { return s.client_seconds; });
  summary.last_report = samples.back().report;
  summary.last_plane = samples.back().plane;

  summary.server.emplace_back("queue", Over(samples, [](const CallSample& s) {
                                return s.report.queue_seconds();
                              }));
  for (const auto& stage : OrderedStages(summary.last_report)) {
    const std::string& name = stage.first;
    summary.server.emplace_back(
        name, Over(samples, [&name](const CallSample& s) {
          const auto found = s.report.stage_seconds().find(name);
          return found == s.report.stage_seconds().end() ? 0 : found->second;
        }));
  }
  summary.server.emplace_back("coordinator",
                              Over(samples, [](const CallSample& s) {
                                return CoordinatorSeconds(s.report);
                              }));
  summary.server.emplace_back("total", Over(samples, [](const CallSample& s) {
                                return s.report.total_seconds();
                              }));
  return summary;
}

void PrintSummary(const BenchSummary& summary, std::ostream& out) {
  out << absl::StrFormat("%d calls in %.2f s: %.1f calls/s, %.3f GB/s",
                         summary.calls, summary.seconds,
                         summary.calls_per_second,
                         summary.bytes_per_second / 1e9)
      << ", " << Name(summary.last_plane) << " plane\n\n";
  TextTable table;
  table.AddRow({"", "p50", "p90", "p99", "max"});
  AddPercentiles("client", summary.client, &table);
  for (const auto& [name, percentiles] : summary.server) {
    AddPercentiles(name, percentiles, &table);
  }
  table.Print(out);
}

nlohmann::ordered_json SummaryJson(const BenchSummary& summary) {
  nlohmann::ordered_json server = nlohmann::ordered_json::object();
  for (const auto& [name, percentiles] : summary.server) {
    server[name] = PercentilesJson(percentiles);
  }
  const auto report = ReportJson(summary.last_report);
  return {
      {"calls", summary.calls},
      {"seconds", summary.seconds},
      {"calls_per_second", summary.calls_per_second},
      {"bytes_per_second", summary.bytes_per_second},
      {"client_seconds", PercentilesJson(summary.client)},
      {"server_seconds", server},
      {"plane", Name(summary.last_plane)},
      {"world_size", report["world_size"]},
      {"kernel", report["kernel"]},
      {"head_schedule", report["head_schedule"]},
      {"communication_precision", report["communication_precision"]},
  };
}

}  // namespace ithaca::client
