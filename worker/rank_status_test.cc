#include "worker/rank_status.h"

#include "gtest/gtest.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "worker/call_refusal.h"

namespace ithaca {
namespace {

using internal::v1::RankRefusal;

RankRefusal DetailsOf(Refusal refusal) {
  const grpc::Status status =
      ToRankStatus(Refused(absl::NotFoundError("gone"), refusal));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "gone");
  RankRefusal details;
  EXPECT_TRUE(details.ParseFromString(status.error_details()));
  return details;
}

TEST(RankStatusTest, ARefusalIsInTheDetails) {
  const RankRefusal own = DetailsOf(Refusal::kOwnReason);
  EXPECT_EQ(own.when(), RankRefusal::BEFORE_EXCHANGES);
  EXPECT_TRUE(own.own_reason());
  const RankRefusal other = DetailsOf(Refusal::kAnotherRanksReason);
  EXPECT_EQ(other.when(), RankRefusal::BEFORE_EXCHANGES);
  EXPECT_FALSE(other.own_reason());
  const RankRefusal after = DetailsOf(Refusal::kAfterExchanges);
  EXPECT_EQ(after.when(), RankRefusal::AFTER_EXCHANGES);
  EXPECT_TRUE(after.own_reason());
}

TEST(RankStatusTest, WhatLosesTheGroupHasNoDetails) {
  EXPECT_TRUE(ToRankStatus(absl::OkStatus()).ok());
  const grpc::Status lost = ToRankStatus(absl::UnavailableError("a peer died"));
  EXPECT_EQ(lost.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(lost.error_details(), "");
}

}  // namespace
}  // namespace ithaca
