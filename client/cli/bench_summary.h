#ifndef ITHACA_CLIENT_CLI_BENCH_SUMMARY_H_
#define ITHACA_CLIENT_CLI_BENCH_SUMMARY_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "client/cli/load_generator.h"
#include "client/cli/percentiles.h"

// The measurements of a bench run, as a table and as JSON.

namespace ithaca::client {

struct BenchSummary {
  int64_t calls = 0;  // that succeeded
  double seconds = 0;
  double calls_per_second = 0;
  double bytes_per_second = 0;  // of tensors, both ways together
  Percentiles client = {};      // from the call to its answer
  // In a call's order: queue, each stage, coordinator, total; of the server.
  std::vector<std::pair<std::string, Percentiles>> server = {};
  ithaca::v1::ExecutionReport last_report = {};
  Plane last_plane = Plane::kUnary;
};

// `call_bytes`: of query, key, value and output.
// REQUIRES: result.samples is not empty.
BenchSummary SummarizeLoad(const LoadResult& result, int64_t call_bytes);

void PrintSummary(const BenchSummary& summary, std::ostream& out);

nlohmann::ordered_json SummaryJson(const BenchSummary& summary);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_BENCH_SUMMARY_H_
