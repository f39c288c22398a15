#include "server/timer_queue.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ithaca::server {
namespace {

TEST(TimerQueueTest, FunctionsRunInTheOrderOfTheirTimes) {
  TimerQueue timers;
  std::vector<int> ran;  // by the one thread
  absl::Notification done;
  const absl::Time start = absl::Now();
  timers.At(start + absl::Milliseconds(30), [&] {
    EXPECT_GE(absl::Now(), start + absl::Milliseconds(30));
    ran.push_back(3);
    done.Notify();
  });
  timers.At(start + absl::Milliseconds(20), [&] { ran.push_back(2); });
  timers.At(start + absl::Milliseconds(10), [&] { ran.push_back(1); });
  done.WaitForNotification();
  EXPECT_EQ(ran, std::vector<int>({1, 2, 3}));
}

TEST(TimerQueueTest, AFunctionMayAddAnother) {
  TimerQueue timers;
  absl::Notification done;
  timers.At(absl::Now(),
            [&] { timers.At(absl::Now(), [&] { done.Notify(); }); });
  done.WaitForNotification();
}

TEST(TimerQueueTest, WhatHasNotComeIsDroppedAtTheEnd) {
  bool ran = false;
  {
    TimerQueue timers;
    timers.At(absl::Now() + absl::Hours(1), [&] { ran = true; });
    timers.At(absl::InfiniteFuture(), [&] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace ithaca::server
