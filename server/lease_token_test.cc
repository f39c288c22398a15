#include "server/lease_token.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ithaca::server {
namespace {

TEST(LeaseTokenTest, TokensAre128BitsAndNeverTheSame) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    const std::string token = NewLeaseToken();
    EXPECT_EQ(token.size(), 32u);
    EXPECT_EQ(token.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_TRUE(seen.insert(token).second);
  }
}

TEST(LeaseTokenTest, NumbersUseAllBits) {
  uint64_t ones = 0;
  uint64_t zeros = 0;
  for (int i = 0; i < 200; ++i) {
    const uint64_t number = RandomNumber();
    ones |= number;
    zeros |= ~number;
  }
  EXPECT_EQ(ones, ~uint64_t{0});
  EXPECT_EQ(zeros, ~uint64_t{0});
}

}  // namespace
}  // namespace ithaca::server
