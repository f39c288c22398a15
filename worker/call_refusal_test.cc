#include "worker/call_refusal.h"

#include "gtest/gtest.h"

namespace ithaca {
namespace {

TEST(CallRefusalTest, AMarkIsReadBackAndTheStatusStaysItself) {
  for (const Refusal refusal :
       {Refusal::kOwnReason, Refusal::kAnotherRanksReason,
        Refusal::kAfterExchanges}) {
    const absl::Status status =
        Refused(absl::NotFoundError("no such object"), refusal);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), "no such object");
    EXPECT_EQ(RefusalOf(status), refusal);
    EXPECT_TRUE(GroupSurvives(status));
  }
}

TEST(CallRefusalTest, AnErrorWithoutAMarkLosesTheGroup) {
  EXPECT_TRUE(GroupSurvives(absl::OkStatus()));
  EXPECT_EQ(RefusalOf(absl::OkStatus()), std::nullopt);
  EXPECT_FALSE(GroupSurvives(absl::ResourceExhaustedError("no memory")));
  EXPECT_FALSE(GroupSurvives(absl::UnavailableError("a peer is gone")));
}

TEST(CallRefusalTest, TheLastMarkCounts) {
  const absl::Status status =
      Refused(Refused(absl::NotFoundError(""), Refusal::kAnotherRanksReason),
              Refusal::kOwnReason);
  EXPECT_EQ(RefusalOf(status), Refusal::kOwnReason);
}

}  // namespace
}  // namespace ithaca
