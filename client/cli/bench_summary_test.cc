#include "client/cli/bench_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace ithaca::client {
namespace {

using ::testing::HasSubstr;

// Three calls of 1, 2 and 3 seconds; half of each is attention.
LoadResult ThreeCalls() {
  LoadResult result;
  result.seconds = 6;
  for (int i = 1; i <= 3; ++i) {
    CallSample sample{.client_seconds = 1.5 * i};
    sample.report.set_total_seconds(i);
    sample.report.set_queue_seconds(0.1 * i);
    (*sample.report.mutable_stage_seconds())["attention"] = 0.5 * i;
    result.samples.push_back(sample);
  }
  return result;
}

TEST(BenchSummaryTest, RatesAndPercentiles) {
  const BenchSummary summary = SummarizeLoad(ThreeCalls(), 1000);
  EXPECT_EQ(summary.calls, 3);
  EXPECT_DOUBLE_EQ(summary.calls_per_second, 0.5);
  EXPECT_DOUBLE_EQ(summary.bytes_per_second, 500);
  EXPECT_DOUBLE_EQ(summary.client.p50, 3);
  ASSERT_EQ(summary.server.size(), 4u);
  EXPECT_EQ(summary.server[0].first, "queue");
  EXPECT_EQ(summary.server[1].first, "attention");
  EXPECT_DOUBLE_EQ(summary.server[1].second.p50, 1);
  EXPECT_EQ(summary.server[2].first, "coordinator");
  EXPECT_NEAR(summary.server[2].second.p50, 2 - 0.2 - 1, 1e-12);
  EXPECT_DOUBLE_EQ(summary.server[3].second.max, 3);
}

TEST(BenchSummaryTest, TextAndJsonSayTheSame) {
  const BenchSummary summary = SummarizeLoad(ThreeCalls(), 1000);
  std::ostringstream out;
  PrintSummary(summary, out);
  EXPECT_THAT(out.str(), HasSubstr("3 calls in 6.00 s: 0.5 calls/s"));
  EXPECT_THAT(out.str(), HasSubstr("attention    1.00 s"));
  const auto json = SummaryJson(summary);
  EXPECT_EQ(json["client_seconds"]["p50"], 3);
  EXPECT_EQ(json["server_seconds"]["attention"]["p50"], 1);
  EXPECT_EQ(json["calls_per_second"], 0.5);
}

}  // namespace
}  // namespace ithaca::client
