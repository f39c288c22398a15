#include "worker/rank_metrics.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

TEST(RankMetricsTest, EverySeriesIsThereFromTheStart) {
  const RankMetrics metrics("1.2.3", "cpu");
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("ithaca_build_info{"));
  EXPECT_THAT(text, HasSubstr("version=\"1.2.3\""));
  EXPECT_THAT(text, HasSubstr("device=\"cpu\""));
  for (const char* stage :
       {"scatter", "pack", "all_to_all", "unpack", "attention", "output_pack",
        "output_all_to_all", "output_unpack", "gather"}) {
    EXPECT_THAT(text, HasSubstr("ithaca_stage_duration_seconds_count{stage=\"" +
                                std::string(stage) + "\"} 0"));
  }
}

TEST(RankMetricsTest, ACallCountsOnceInEachStage) {
  RankMetrics metrics("1.2.3", "cpu");
  RankReport report;
  report.stage_seconds[static_cast<size_t>(Stage::kAttention)] = 0.5;
  metrics.Observe(report);
  metrics.Observe(report);
  const std::string text = metrics.Text();
  EXPECT_THAT(
      text,
      HasSubstr("ithaca_stage_duration_seconds_sum{stage=\"attention\"} 1\n"));
  EXPECT_THAT(
      text,
      HasSubstr("ithaca_stage_duration_seconds_count{stage=\"pack\"} 2\n"));
}

}  // namespace
}  // namespace ithaca
