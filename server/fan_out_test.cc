#include "server/fan_out.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "core/sequence_parallel_plan.h"
#include "server/fake_group.h"
#include "server/gather.h"
#include "server/rank_message.h"
#include "server/readiness_probe.h"

namespace ithaca::server {
namespace {

constexpr int kWorldSize = 3;

class FanOutTest : public ::testing::Test {
 protected:
  FanOutTest()
      : group_(kWorldSize),
        channels_(
            std::make_shared<RankChannels>(group_.Describe("g", 1).members)),
        call_(MakeReadinessProbe(kWorldSize, {})),
        plan_(*MakeSequenceParallelPlan(call_->shape, call_->options,
                                        kWorldSize)) {}

  std::shared_ptr<FanOut> Start(uint64_t number) {
    auto fan_out = std::make_shared<FanOut>(
        channels_,
        MakeRankRequests(plan_, DescribeCall(plan_, {}, "id", 1, number),
                         call_->tensors),
        absl::Now() + absl::Seconds(60),
        FanOut::Callbacks{[this](int, const grpc::Status&) { ++failures_; },
                          [this] { done_.Notify(); }});
    fan_out->Start();
    return fan_out;
  }

  FakeGroup group_;
  std::shared_ptr<RankChannels> channels_;
  std::shared_ptr<PendingCall> call_;
  SequenceParallelPlan plan_;
  std::atomic<int> failures_{0};
  absl::Notification done_;
};

TEST_F(FanOutTest, EveryRankAnswersAndTheOutputIsGathered) {
  const auto fan_out = Start(1);
  done_.WaitForNotification();
  EXPECT_EQ(failures_, 0);
  const auto outcome =
      Gather(plan_, "g", 5, 0.25, OutputPlace::kResponse, *fan_out);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_TRUE(CheckReadinessProbe(kWorldSize, outcome->output).ok());
  const auto& report = outcome->report;
  EXPECT_EQ(report.group(), "g");
  EXPECT_EQ(report.group_generation(), 5u);
  EXPECT_EQ(report.world_size(), 3u);
  EXPECT_EQ(report.queue_seconds(), 0.25);
  EXPECT_EQ(report.kernel(), ithaca::v1::ATTENTION_KERNEL_MATH);
  EXPECT_EQ(report.head_schedule(), ithaca::v1::HEAD_SCHEDULE_FUSED);
  EXPECT_EQ(report.communication_precision(),
            ithaca::v1::COMMUNICATION_PRECISION_NATIVE);
  // The slowest rank, and the rank that sent the most.
  EXPECT_DOUBLE_EQ(report.stage_seconds().at("attention"), 0.003);
  EXPECT_EQ(report.communication_bytes(), 102u);
  EXPECT_EQ(outcome->communication_bytes, 303);
  EXPECT_DOUBLE_EQ(outcome->slowest_rank_seconds, 0.006);
}

TEST_F(FanOutTest, ARanksFailureIsHeardOfWhileOthersStillRun) {
  group_.FailNext(1, {grpc::StatusCode::UNAVAILABLE, "exchange broken"});
  const auto fan_out = Start(1);
  while (failures_ == 0) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(done_.HasBeenNotified());
  fan_out->Cancel();
  done_.WaitForNotification();
  EXPECT_EQ(fan_out->status(1).error_message(), "exchange broken");
  EXPECT_EQ(fan_out->status(0).error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(FanOutTest, ARefusalOfEveryRankIsNoFailure) {
  group_.RefuseNext({grpc::StatusCode::RESOURCE_EXHAUSTED, "no memory"});
  const auto fan_out = Start(1);
  done_.WaitForNotification();
  EXPECT_EQ(failures_, 0);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_EQ(fan_out->status(rank).error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
  }
}

}  // namespace
}  // namespace ithaca::server
