#include "worker/plan_threads.h"

#include <atomic>
#include <cstdint>
#include <set>
#include <thread>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

std::atomic<int> plans_kept{0};

// What a library keeps: goes with its thread.
struct Kept {
  std::set<int64_t> shapes;
  ~Kept() { plans_kept -= static_cast<int>(shapes.size()); }
  // Whether the shape had a plan.
  bool Use(int64_t shape) {
    if (!shapes.insert(shape).second) return true;
    ++plans_kept;
    return false;
  }
};

thread_local Kept kept;

bool HadPlan(PlanThreads& threads, int64_t shape) {
  bool had = false;
  threads.Run({shape}, [&had, shape] { had = kept.Use(shape); });
  return had;
}

class PlanThreadsTest : public testing::Test {
 protected:
  // On a thread of the test's own, so that it starts with nothing kept.
  template <typename Body>
  static void OnFreshThread(const Body& body) {
    std::thread(body).join();
    EXPECT_EQ(plans_kept, 0);
  }
};

TEST_F(PlanThreadsTest, FirstShapesRunOnTheCallingThread) {
  OnFreshThread([] {
    PlanThreads threads(3);
    const std::thread::id caller = std::this_thread::get_id();
    for (int64_t shape = 0; shape < 4; ++shape) {
      std::thread::id ran_on;
      threads.Run({shape}, [&ran_on] { ran_on = std::this_thread::get_id(); });
      EXPECT_EQ(ran_on == caller, shape < 3) << shape;
    }
  });
}

TEST_F(PlanThreadsTest, NoMoreThanTwiceTheLimitIsEverKept) {
  OnFreshThread([] {
    PlanThreads threads(5);
    for (int64_t shape = 0; shape < 200; ++shape) {
      EXPECT_FALSE(HadPlan(threads, shape));
      EXPECT_LE(plans_kept, 10);
    }
  });
}

TEST_F(PlanThreadsTest, ShapesThatComeAgainHaveTheirPlan) {
  OnFreshThread([] {
    PlanThreads threads(5);
    for (int64_t shape = 0; shape < 8; ++shape) HadPlan(threads, shape);
    for (int round = 0; round < 3; ++round) {
      for (int64_t shape = 0; shape < 8; ++shape) {
        EXPECT_TRUE(HadPlan(threads, shape)) << shape;
      }
    }
    // Many others later the first ones still do.
    for (int64_t shape = 100; shape < 150; ++shape) HadPlan(threads, shape);
    for (int64_t shape = 0; shape < 5; ++shape) {
      EXPECT_TRUE(HadPlan(threads, shape)) << shape;
    }
  });
}

}  // namespace
}  // namespace ithaca
