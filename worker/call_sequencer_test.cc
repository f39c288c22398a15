#include "worker/call_sequencer.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const absl::Status kLost = absl::UnavailableError("the group is lost");

class CallSequencerTest : public ::testing::Test {
 protected:
  ~CallSequencerTest() override {
    sequencer_.Abort(kLost);
    if (runner_.joinable()) runner_.join();
  }

  void StartRunning() {
    runner_ = std::thread([this] { sequencer_.Run(); });
  }

  CallSequencer::Call Record(uint64_t number) {
    return [this, number](const absl::Status& admission) {
      absl::MutexLock lock(&mutex_);
      (admission.ok() ? ran_ : refused_).push_back(number);
    };
  }

  void AwaitRan(size_t count) {
    absl::MutexLock lock(&mutex_);
    auto enough = [&] { return ran_.size() >= count; };
    ASSERT_TRUE(
        mutex_.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30)));
  }

  std::vector<uint64_t> ran() {
    absl::MutexLock lock(&mutex_);
    return ran_;
  }
  std::vector<uint64_t> refused() {
    absl::MutexLock lock(&mutex_);
    return refused_;
  }

  CallSequencer sequencer_{64};
  std::thread runner_;
  absl::Mutex mutex_;
  std::vector<uint64_t> ran_, refused_;
};

TEST_F(CallSequencerTest, CallsRunByNumberWhateverTheOrderOfArrival) {
  std::vector<uint64_t> numbers(64);
  std::iota(numbers.begin(), numbers.end(), 1);
  std::vector<uint64_t> shuffled = numbers;
  std::shuffle(shuffled.begin(), shuffled.end(), std::mt19937(7));
  StartRunning();
  for (uint64_t number : shuffled) {
    ASSERT_TRUE(sequencer_.Submit(number, Record(number)).ok());
  }
  AwaitRan(numbers.size());
  EXPECT_EQ(ran(), numbers);
}

TEST_F(CallSequencerTest, ACallWaitsForTheGapBeforeIt) {
  StartRunning();
  ASSERT_TRUE(sequencer_.Submit(2, Record(2)).ok());
  ASSERT_TRUE(sequencer_.Submit(3, Record(3)).ok());
  EXPECT_TRUE(sequencer_.AwaitIdle(absl::Seconds(30)));
  EXPECT_THAT(ran(), IsEmpty());
  ASSERT_TRUE(sequencer_.Submit(1, Record(1)).ok());
  AwaitRan(3);
  EXPECT_THAT(ran(), ElementsAre(1, 2, 3));
}

TEST_F(CallSequencerTest, ManySubmittersAreOneOrder) {
  StartRunning();
  std::vector<std::thread> submitters;
  for (int t = 0; t < 4; ++t) {
    submitters.emplace_back([this, t] {
      for (uint64_t i = 0; i < 16; ++i) {
        const uint64_t number = 1 + 4 * i + static_cast<uint64_t>(t);
        EXPECT_TRUE(sequencer_.Submit(number, Record(number)).ok());
      }
    });
  }
  for (std::thread& submitter : submitters) submitter.join();
  AwaitRan(64);
  const std::vector<uint64_t> order = ran();
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST_F(CallSequencerTest, DuplicateAndStaleAndZeroAreRefused) {
  ASSERT_TRUE(sequencer_.Submit(2, Record(2)).ok());
  EXPECT_EQ(sequencer_.Submit(2, Record(2)).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(sequencer_.Submit(0, Record(0)).code(),
            absl::StatusCode::kInvalidArgument);
  StartRunning();
  ASSERT_TRUE(sequencer_.Submit(1, Record(1)).ok());
  AwaitRan(2);
  EXPECT_EQ(sequencer_.Submit(1, Record(1)).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused(), IsEmpty());
  EXPECT_THAT(ran(), ElementsAre(1, 2));
}

TEST_F(CallSequencerTest, TheWindowBoundsWhatWaits) {
  EXPECT_TRUE(sequencer_.Submit(64, Record(64)).ok());
  EXPECT_EQ(sequencer_.Submit(65, Record(65)).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(sequencer_.Submit(~uint64_t{0}, Record(1)).code(),
            absl::StatusCode::kOutOfRange);
}

TEST_F(CallSequencerTest, AbortRefusesTheWaitingAndAllThatCome) {
  ASSERT_TRUE(sequencer_.Submit(2, Record(2)).ok());
  ASSERT_TRUE(sequencer_.Submit(5, Record(5)).ok());
  sequencer_.Abort(kLost);
  sequencer_.Abort(absl::InternalError("a later reason"));
  EXPECT_THAT(refused(), ElementsAre(2, 5));
  EXPECT_EQ(sequencer_.Submit(1, Record(1)), kLost);
  sequencer_.Run();  // returns
  EXPECT_THAT(ran(), IsEmpty());
}

TEST_F(CallSequencerTest, AbortLetsTheRunningCallFinish) {
  absl::Notification entered, leave;
  bool finished = false;
  ASSERT_TRUE(sequencer_
                  .Submit(1,
                          [&](const absl::Status&) {
                            entered.Notify();
                            leave.WaitForNotification();
                            finished = true;
                          })
                  .ok());
  StartRunning();
  entered.WaitForNotification();
  sequencer_.Abort(kLost);
  leave.Notify();
  runner_.join();
  EXPECT_TRUE(finished);
}

TEST_F(CallSequencerTest, IdleWaitsForTheRunningCall) {
  absl::Notification entered, leave;
  ASSERT_TRUE(sequencer_
                  .Submit(1,
                          [&](const absl::Status&) {
                            entered.Notify();
                            leave.WaitForNotification();
                          })
                  .ok());
  EXPECT_FALSE(sequencer_.AwaitIdle(absl::ZeroDuration()));
  StartRunning();
  entered.WaitForNotification();
  EXPECT_FALSE(sequencer_.AwaitIdle(absl::Milliseconds(1)));
  leave.Notify();
  EXPECT_TRUE(sequencer_.AwaitIdle(absl::Seconds(30)));
}

TEST_F(CallSequencerTest, WhatACallHoldsIsReleasedWhenItHasRun) {
  auto held = std::make_shared<int>(0);
  std::weak_ptr<int> watch = held;
  ASSERT_TRUE(
      sequencer_.Submit(1, [held = std::move(held)](const absl::Status&) {})
          .ok());
  StartRunning();
  ASSERT_TRUE(sequencer_.AwaitIdle(absl::Seconds(30)));
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace ithaca
