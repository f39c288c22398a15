#include "server/metrics.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace ithaca::server {
namespace {

// Series (name with labels) to value. Fails on a line that is neither a
// comment nor a sample, and on a series that comes twice.
std::map<std::string, double> Parse(const std::string& page) {
  static const std::regex kSample(
      R"re(([a-z_]+)(\{([a-z_]+="([^"\\\n]|\\.)*",?)*\})? ([0-9.e+-]+|\+Inf|NaN))re");
  std::map<std::string, double> series;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == '#') continue;
    EXPECT_TRUE(std::regex_match(line, kSample)) << line;
    const size_t space = line.rfind(' ');
    const bool fresh =
        series.emplace(line.substr(0, space), std::stod(line.substr(space + 1)))
            .second;
    EXPECT_TRUE(fresh) << line;
  }
  return series;
}

TEST(MetricsTest, EverySeriesIsThereAtZeroBeforeTheFirstCall) {
  const Metrics metrics("1.2.3", "cpu");
  const std::string page = metrics.Serialize();
  const auto series = Parse(page);
  for (const char* family :
       {"requests_total", "request_duration_seconds", "queue_duration_seconds",
        "stage_duration_seconds", "tensor_bytes_total",
        "communication_bytes_total", "in_flight_requests", "in_flight_bytes",
        "queued_requests", "groups", "workers", "group_formations_total",
        "group_failures_total", "retries_total", "memory_regions",
        "memory_region_bytes", "leases", "leases_expired_total",
        "build_info"}) {
    EXPECT_NE(page.find(std::string("# TYPE ithaca_") + family + " "),
              std::string::npos)
        << family;
  }
  for (const auto& [name, value] : series) {
    if (name.starts_with("ithaca_build_info")) {
      EXPECT_EQ(value, 1) << name;
      EXPECT_NE(name.find("version=\"1.2.3\""), std::string::npos);
      EXPECT_NE(name.find("device=\"cpu\""), std::string::npos);
    } else {
      EXPECT_EQ(value, 0) << name;
    }
  }
  EXPECT_TRUE(series.count(
      R"(ithaca_requests_total{code="DEADLINE_EXCEEDED",method="Attention"})"))
      << page;
  for (const std::string_view stage : kStageNames) {
    EXPECT_TRUE(series.count("ithaca_stage_duration_seconds_count{stage=\"" +
                             std::string(stage) + "\"}"));
  }
}

TEST(MetricsTest, ACallCountsOnceUnderItsCodeAndLeavesTheGauge) {
  Metrics metrics("v", "cpu");
  {
    CallRecord record(&metrics, Method::kAttention);
    EXPECT_EQ(Parse(metrics.Serialize())["ithaca_in_flight_requests"], 1);
    record.End(grpc::StatusCode::OK);
    record.End(grpc::StatusCode::INTERNAL);
    EXPECT_EQ(Parse(metrics.Serialize())["ithaca_in_flight_requests"], 0);
  }
  { const CallRecord dropped(&metrics, Method::kAttention); }
  auto series = Parse(metrics.Serialize());
  EXPECT_EQ(series["ithaca_in_flight_requests"], 0);
  double total = 0;
  for (const auto& [name, value] : series) {
    if (name.starts_with("ithaca_requests_total")) total += value;
  }
  EXPECT_EQ(total, 2);
  EXPECT_EQ(series[R"(ithaca_requests_total{code="OK",method="Attention"})"],
            1);
  EXPECT_EQ(
      series[R"(ithaca_requests_total{code="CANCELLED",method="Attention"})"],
      1);
  EXPECT_EQ(
      series[R"(ithaca_request_duration_seconds_count{method="Attention"})"],
      2);
}

TEST(MetricsTest, HistogramsAreCumulativeWithInclusiveBounds) {
  Metrics metrics("v", "cpu");
  for (const double seconds : {0.0, 0.0001, 0.5, 1.0, 119.0, 121.0}) {
    metrics.ObserveQueue(seconds);
  }
  auto series = Parse(metrics.Serialize());
  const auto bucket = [&](const std::string& le) {
    return series.at("ithaca_queue_duration_seconds_bucket{le=\"" + le + "\"}");
  };
  EXPECT_EQ(bucket("0.0001"), 2);
  EXPECT_EQ(bucket("0.25"), 2);
  EXPECT_EQ(bucket("0.5"), 3);
  EXPECT_EQ(bucket("1"), 4);
  EXPECT_EQ(bucket("60"), 4);
  EXPECT_EQ(bucket("120"), 5);
  EXPECT_EQ(bucket("+Inf"), 6);
  EXPECT_EQ(series["ithaca_queue_duration_seconds_count"], 6);
  EXPECT_NEAR(series["ithaca_queue_duration_seconds_sum"], 241.5001, 1e-3);
}

TEST(MetricsTest, NothingAddsASeries) {
  Metrics metrics("v", "cpu");
  const size_t before = Parse(metrics.Serialize()).size();
  metrics.CountRequest(Method::kAttention, static_cast<grpc::StatusCode>(9999),
                       1);
  metrics.ObserveStage("a\"b\\c\nd\xff", 1);
  metrics.ObserveStage("pack", 1);
  metrics.CountTensorBytes(Plane::kUnary, Direction::kOut, 7);
  metrics.CountCommunicationBytes(CommunicationPrecision::kInt8, 9);
  metrics.CountGroupFailure(GroupFailureReason::kFormationFailed);
  metrics.CountGroupFormation(true);
  metrics.SetGroups({1, 2, 3, 4});
  metrics.SetWorkers({1, 2, 3});
  metrics.SetLeases(4);
  metrics.SetRegions(MemoryKind::kShared, 5, 6);
  metrics.SetRegions(MemoryKind::kCuda, 7, 8);
  metrics.CountLeaseExpired();
  metrics.CountRequest(Method::kListMemory, grpc::StatusCode::NOT_FOUND, 1);
  auto series = Parse(metrics.Serialize());
  EXPECT_EQ(series.size(), before);
  EXPECT_EQ(
      series[R"(ithaca_tensor_bytes_total{direction="out",plane="unary"})"], 7);
  EXPECT_EQ(series[R"(ithaca_communication_bytes_total{precision="int8"})"], 9);
  EXPECT_EQ(series[R"(ithaca_groups{state="failed"})"], 4);
  EXPECT_EQ(series[R"(ithaca_workers{state="in_group"})"], 3);
  EXPECT_EQ(series[R"(ithaca_group_formations_total{result="formed"})"], 1);
  EXPECT_EQ(series["ithaca_leases"], 4);
  EXPECT_EQ(series[R"(ithaca_memory_regions{kind="shared"})"], 5);
  EXPECT_EQ(series[R"(ithaca_memory_region_bytes{kind="shared"})"], 6);
  EXPECT_EQ(series[R"(ithaca_memory_regions{kind="cuda"})"], 7);
  EXPECT_EQ(series["ithaca_leases_expired_total"], 1);
  EXPECT_EQ(
      series[R"(ithaca_requests_total{code="NOT_FOUND",method="ListMemory"})"],
      1);
}

TEST(MetricsTest, AVersionOfAnyBytesKeepsThePageReadable) {
  const Metrics metrics("a\"b\\c\nd", "cpu");
  const auto series = Parse(metrics.Serialize());
  EXPECT_TRUE(
      series.count(R"(ithaca_build_info{device="cpu",version="a\"b\\c\nd"})"));
}

}  // namespace
}  // namespace ithaca::server
