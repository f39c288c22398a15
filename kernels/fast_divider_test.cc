#include "kernels/fast_divider.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "gtest/gtest.h"

namespace ithaca::kernels {
namespace {

constexpr int64_t kLimit = int64_t{1} << 31;

void CheckAround(const FastDivider& divider, int64_t n) {
  for (int64_t i = n - 1; i <= n + 1; ++i) {
    if (i < 0 || i >= kLimit) continue;
    ASSERT_EQ(divider.Divide(static_cast<uint32_t>(i)), i / divider.divisor())
        << i << " / " << divider.divisor();
  }
}

// Where a quotient steps is where an inexact one would show.
void CheckSteps(int64_t divisor, std::mt19937_64& random) {
  const FastDivider divider(divisor);
  ASSERT_EQ(divider.divisor(), divisor);
  CheckAround(divider, 0);
  CheckAround(divider, kLimit - 1);
  const int64_t steps = (kLimit - 1) / divisor;
  CheckAround(divider, steps * divisor);
  for (int i = 0; i < 100; ++i) {
    CheckAround(divider,
                static_cast<int64_t>(random() % (steps + 1)) * divisor);
  }
}

TEST(FastDividerTest, EqualsDivisionForSmallDivisors) {
  std::mt19937_64 random(1);
  for (int64_t divisor = 1; divisor <= 5000; ++divisor) {
    CheckSteps(divisor, random);
  }
}

TEST(FastDividerTest, EqualsDivisionAroundPowersOfTwo) {
  std::mt19937_64 random(2);
  for (int64_t power = 2; power <= kLimit; power *= 2) {
    for (const int64_t divisor : {power - 1, power, power + 1}) {
      if (divisor < kLimit) CheckSteps(divisor, random);
    }
  }
}

TEST(FastDividerTest, EqualsDivisionForRandomDivisors) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const auto bits = static_cast<int>(random() % 31);
    const int64_t divisor = static_cast<int64_t>(
        (random() % (uint64_t{1} << bits)) + (uint64_t{1} << bits));
    CheckSteps(std::min(divisor, kLimit - 1), random);
  }
}

TEST(FastDividerTest, DividesByOneUntilAsked) {
  EXPECT_EQ(FastDivider().Divide(7), 7u);
}

}  // namespace
}  // namespace ithaca::kernels
