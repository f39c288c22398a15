#include "client/cli/execution_report_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace ithaca::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

v1::ExecutionReport Report() {
  v1::ExecutionReport report;
  report.set_group("group-1");
  report.set_group_generation(4);
  report.set_world_size(2);
  report.set_kernel(v1::ATTENTION_KERNEL_FLASH);
  report.set_head_schedule(v1::HEAD_SCHEDULE_PER_HEAD);
  report.set_communication_precision(v1::COMMUNICATION_PRECISION_INT8);
  report.set_queue_seconds(0.1);
  report.set_total_seconds(1.0);
  (*report.mutable_stage_seconds())["gather"] = 0.2;
  (*report.mutable_stage_seconds())["brand_new"] = 0.05;
  (*report.mutable_stage_seconds())["attention"] = 0.5;
  (*report.mutable_stage_seconds())["scatter"] = 0.1;
  report.set_communication_bytes(2048);
  return report;
}

TEST(ExecutionReportTextTest, StagesComeInTheirOrderUnknownOnesLast) {
  EXPECT_THAT(OrderedStages(Report()),
              ElementsAre(Pair("scatter", 0.1), Pair("attention", 0.5),
                          Pair("gather", 0.2), Pair("brand_new", 0.05)));
}

TEST(ExecutionReportTextTest, CoordinatorHasWhatIsLeft) {
  EXPECT_NEAR(CoordinatorSeconds(Report()), 0.05, 1e-12);
}

TEST(ExecutionReportTextTest, StagesThatOverlapLeaveTheCoordinatorNothing) {
  v1::ExecutionReport report = Report();
  (*report.mutable_stage_seconds())["attention"] = 0.9;
  EXPECT_EQ(CoordinatorSeconds(report), 0);
}

TEST(ExecutionReportTextTest, TextNamesWhoRanItAndHow) {
  std::ostringstream out;
  PrintReport(Report(), out);
  EXPECT_THAT(out.str(), HasSubstr("group-1, generation 4, 2 ranks"));
  EXPECT_THAT(out.str(),
              HasSubstr("flash kernel, per_head schedule, int8 precision, "
                        "2.00 KiB sent by a rank"));
  EXPECT_THAT(out.str(), HasSubstr("attention     500 ms   50.0 %"));
}

TEST(ExecutionReportTextTest, JsonHasTheApisFields) {
  const auto json = ReportJson(Report());
  EXPECT_EQ(json["kernel"], "flash");
  EXPECT_EQ(json["stage_seconds"]["gather"], 0.2);
  EXPECT_EQ(json["communication_bytes"], 2048);
  EXPECT_EQ(json["group_generation"], 4);
}

}  // namespace
}  // namespace ithaca::client
