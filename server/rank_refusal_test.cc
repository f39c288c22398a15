#include "server/rank_refusal.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ithaca/internal/v1/worker.pb.h"

namespace ithaca::server {
namespace {

using ithaca::internal::v1::RankRefusal;
using Kind = RankVerdict::Kind;

const grpc::Status kOk;

grpc::Status Refusal(grpc::StatusCode code, const std::string& message,
                     RankRefusal::When when, bool own_reason) {
  RankRefusal refusal;
  refusal.set_when(when);
  refusal.set_own_reason(own_reason);
  return {code, message, refusal.SerializeAsString()};
}

grpc::Status Before(grpc::StatusCode code, bool own_reason) {
  return Refusal(code, own_reason ? "why" : "rank 1 cannot",
                 RankRefusal::BEFORE_EXCHANGES, own_reason);
}

RankVerdict Judge(const std::vector<grpc::Status>& answers) {
  return JudgeAnswers(answers, {"h/0", "h/1", "h/2"});
}

TEST(RankRefusalTest, OnlyAMarkedErrorLeavesTheGroupIntact) {
  EXPECT_TRUE(LeavesGroupIntact(kOk));
  for (const auto code :
       {grpc::StatusCode::RESOURCE_EXHAUSTED, grpc::StatusCode::UNIMPLEMENTED,
        grpc::StatusCode::FAILED_PRECONDITION, grpc::StatusCode::INTERNAL}) {
    EXPECT_TRUE(LeavesGroupIntact(Before(code, true)));
    EXPECT_FALSE(LeavesGroupIntact({code, "no mark"}));
    EXPECT_FALSE(LeavesGroupIntact({code, "no mark of ours", "\xff"}));
  }
}

TEST(RankRefusalTest, AllOkIsAnAnswer) {
  const RankVerdict verdict = Judge({kOk, kOk, kOk});
  EXPECT_EQ(verdict.kind, Kind::kAnswered);
  EXPECT_TRUE(verdict.refusal.ok());
}

TEST(RankRefusalTest, TheRankThatKnowsWhyIsHeard) {
  const auto code = grpc::StatusCode::FAILED_PRECONDITION;
  const RankVerdict verdict =
      Judge({Before(code, false), Before(code, true), Before(code, false)});
  EXPECT_EQ(verdict.kind, Kind::kRefused);
  EXPECT_EQ(verdict.refusal, absl::FailedPreconditionError("worker h/1: why"));
}

TEST(RankRefusalTest, WithoutOneThatKnowsTheFirstIsHeard) {
  const auto code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  const RankVerdict verdict =
      Judge({Before(code, false), Before(code, false), Before(code, false)});
  EXPECT_EQ(verdict.kind, Kind::kRefused);
  EXPECT_EQ(verdict.refusal,
            absl::ResourceExhaustedError("worker h/0: rank 1 cannot"));
}

TEST(RankRefusalTest, WhatARankDoesNotFindIsThereForTheClient) {
  const auto code = grpc::StatusCode::NOT_FOUND;
  EXPECT_TRUE(absl::IsFailedPrecondition(
      Judge({Before(code, true), Before(code, true), Before(code, true)})
          .refusal));
}

TEST(RankRefusalTest, ARankThatFailsAfterTheExchangesFailsAlone) {
  const RankVerdict verdict =
      Judge({kOk, kOk,
             Refusal(grpc::StatusCode::FAILED_PRECONDITION, "it shrank",
                     RankRefusal::AFTER_EXCHANGES, true)});
  EXPECT_EQ(verdict.kind, Kind::kRefused);
  EXPECT_EQ(verdict.refusal,
            absl::FailedPreconditionError("worker h/2: it shrank"));
}

TEST(RankRefusalTest, RanksThatDoNotRefuseTogetherDisagree) {
  const auto code = grpc::StatusCode::RESOURCE_EXHAUSTED;
  EXPECT_EQ(Judge({Before(code, true), kOk, kOk}).kind, Kind::kDisagree);
  EXPECT_EQ(Judge({Before(code, true), Before(code, false),
                   Refusal(code, "late", RankRefusal::AFTER_EXCHANGES, true)})
                .kind,
            Kind::kDisagree);
}

}  // namespace
}  // namespace ithaca::server
