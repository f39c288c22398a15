#include "server/byte_budget.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "server/status_mapping.h"

namespace ithaca::server {
namespace {

TEST(ByteBudgetTest, ReservesUpToTheLimitAndNoFurther) {
  ByteBudget budget(100);
  auto first = budget.Reserve(60);
  ASSERT_TRUE(first.ok());
  const auto second = budget.Reserve(41);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryHint(second.status()).has_value());
  const auto third = budget.Reserve(40);
  EXPECT_TRUE(third.ok());
  EXPECT_EQ(budget.reserved(), 100);
  EXPECT_TRUE(budget.Reserve(0).ok());
}

TEST(ByteBudgetTest, WhatCanNeverFitHasNoHintToRetry) {
  ByteBudget budget(100);
  const auto status =
      budget.Reserve(std::numeric_limits<int64_t>::max()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(RetryHint(status).has_value());
}

TEST(ByteBudgetTest, AReservationReturnsItsBytesOnce) {
  ByteBudget budget(100);
  {
    auto first = budget.Reserve(100);
    ASSERT_TRUE(first.ok());
    ByteBudget::Reservation moved = *std::move(first);
    EXPECT_EQ(budget.reserved(), 100);
    moved.Release();
    moved.Release();
    EXPECT_EQ(budget.reserved(), 0);
  }
  EXPECT_EQ(budget.reserved(), 0);
  { const auto again = budget.Reserve(100); }
  EXPECT_EQ(budget.reserved(), 0);
}

}  // namespace
}  // namespace ithaca::server
