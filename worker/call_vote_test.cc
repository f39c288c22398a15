#include "worker/call_vote.h"

#include <vector>

#include "gtest/gtest.h"
#include "worker/call_refusal.h"

namespace ithaca {
namespace {

TEST(CallVoteTest, EqualVotesAgree) {
  EXPECT_TRUE(CountVotes(std::vector<CallVote>{{7, 9}}).ok());
  EXPECT_TRUE(CountVotes(std::vector<CallVote>{{7, 9}, {7, 9}, {7, 9}}).ok());
}

TEST(CallVoteTest, DifferentCallsOrPlansLoseTheGroup) {
  const absl::Status calls =
      CountVotes(std::vector<CallVote>{{7, 9}, {7, 9}, {8, 9}});
  EXPECT_EQ(calls.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(GroupSurvives(calls));
  const absl::Status plans = CountVotes(std::vector<CallVote>{{7, 9}, {7, 8}});
  EXPECT_EQ(plans.code(), absl::StatusCode::kInternal);
  // Worse than any rank's own failure.
  EXPECT_EQ(CountVotes(std::vector<CallVote>{
                           {7, 9, absl::StatusCode::kUnimplemented}, {7, 8}})
                .code(),
            absl::StatusCode::kInternal);
}

TEST(CallVoteTest, TheLowestFailingRankDecides) {
  const absl::Status status = CountVotes(
      std::vector<CallVote>{{7, 9},
                            {7, 9, absl::StatusCode::kUnimplemented},
                            {7, 9, absl::StatusCode::kResourceExhausted}});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("rank 1"), absl::string_view::npos);
  EXPECT_TRUE(GroupSurvives(status));
}

TEST(CallVoteTest, WhatIsWrongWithARegionIsPassedOn) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kNotFound, absl::StatusCode::kInvalidArgument,
        absl::StatusCode::kFailedPrecondition}) {
    const absl::Status status =
        CountVotes(std::vector<CallVote>{{7, 9}, {7, 9, code}});
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(RefusalOf(status), Refusal::kAnotherRanksReason);
  }
}

TEST(CallVoteTest, AnUnexpectedCodeStillRefusesTheCall) {
  const absl::Status status = CountVotes(
      std::vector<CallVote>{{7, 9, absl::StatusCode::kDataLoss}, {7, 9}});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(GroupSurvives(status));
}

}  // namespace
}  // namespace ithaca
