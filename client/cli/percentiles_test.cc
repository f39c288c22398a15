#include "client/cli/percentiles.h"

#include <gtest/gtest.h>

namespace ithaca::client {
namespace {

TEST(PercentilesTest, HundredAndOneNumbersInAnyOrder) {
  std::vector<double> numbers;
  for (int i = 0; i <= 100; ++i) numbers.push_back((i * 37) % 101);
  const Percentiles p = Summarize(numbers);
  EXPECT_DOUBLE_EQ(p.min, 0);
  EXPECT_DOUBLE_EQ(p.mean, 50);
  EXPECT_DOUBLE_EQ(p.p50, 50);
  EXPECT_DOUBLE_EQ(p.p90, 90);
  EXPECT_DOUBLE_EQ(p.p99, 99);
  EXPECT_DOUBLE_EQ(p.max, 100);
}

TEST(PercentilesTest, BetweenTwoNumbers) {
  const Percentiles p = Summarize({3, 1});
  EXPECT_DOUBLE_EQ(p.p50, 2);
  EXPECT_DOUBLE_EQ(p.p90, 2.8);
}

TEST(PercentilesTest, OneNumberAndNone) {
  EXPECT_EQ(Summarize({4}).p99, 4);
  EXPECT_EQ(Summarize({}).p99, 0);
}

}  // namespace
}  // namespace ithaca::client
