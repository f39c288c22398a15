#include "server/group_former.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::Duration kWait = absl::Seconds(2);
const absl::Time kStart = absl::UnixEpoch();
const absl::Time kLater = kStart + absl::Hours(1);

FormationCandidate On(const std::string& host, WorkerId id) {
  FormationCandidate candidate;
  candidate.id = id;
  candidate.host = host;
  candidate.joined_at = kStart;
  return candidate;
}

FormationCandidate Slot(WorkerId id, int slot) {
  FormationCandidate candidate = On("here", id);
  candidate.local_slot = slot;
  return candidate;
}

TEST(GroupFormerTest, TooFewWorkersMakeNoGroupHoweverLongOneWaits) {
  FormationDecision decision =
      ChooseMembers({On("a", 1), On("a", 2)}, 3, kLater, kWait);
  EXPECT_THAT(decision.members, IsEmpty());
  EXPECT_EQ(decision.wait_until, absl::InfiniteFuture());
}

TEST(GroupFormerTest, OneHostWithEnoughFormsAtOnce) {
  EXPECT_THAT(
      ChooseMembers({On("a", 1), On("b", 2), On("b", 3)}, 2, kStart, kWait)
          .members,
      ElementsAre(2, 3));
}

TEST(GroupFormerTest, SpanningHostsWaitsForTheNewestToSettle) {
  std::vector<FormationCandidate> candidates = {On("a", 1), On("b", 2)};
  candidates[1].joined_at = kStart + absl::Seconds(1);
  FormationDecision early =
      ChooseMembers(candidates, 2, kStart + absl::Seconds(2), kWait);
  EXPECT_THAT(early.members, IsEmpty());
  EXPECT_EQ(early.wait_until, kStart + absl::Seconds(3));
  EXPECT_THAT(ChooseMembers(candidates, 2, early.wait_until, kWait).members,
              ElementsAre(1, 2));
}

TEST(GroupFormerTest, ASpanningGroupTakesFewestHostsOneAfterTheOther) {
  EXPECT_THAT(ChooseMembers({On("a", 1), On("b", 2), On("a", 3), On("c", 4),
                             On("b", 5), On("b", 6)},
                            5, kLater, kWait)
                  .members,
              ElementsAre(2, 5, 6, 1, 3));
}

TEST(GroupFormerTest, LocalSlotsAreRanks) {
  EXPECT_THAT(
      ChooseMembers({Slot(7, 2), Slot(8, 0), Slot(9, 1)}, 3, kStart, kWait)
          .members,
      ElementsAre(8, 9, 7));
}

TEST(GroupFormerTest, ThoseThatJoinedFirstAreTaken) {
  EXPECT_THAT(
      ChooseMembers({On("a", 5), On("a", 1), On("a", 3)}, 2, kStart, kWait)
          .members,
      ElementsAre(1, 3));
}

TEST(GroupFormerTest, AWorkerWhoseFormationsFailIsTakenLast) {
  std::vector<FormationCandidate> candidates = {On("a", 1), On("a", 2),
                                                On("a", 3)};
  candidates[0].failed_formations = 2;
  candidates[1].failed_formations = 1;
  EXPECT_THAT(ChooseMembers(candidates, 2, kStart, kWait).members,
              ElementsAre(2, 3));
}

TEST(GroupFormerTest, AHostWhoseFormationsFailIsTakenLast) {
  std::vector<FormationCandidate> candidates = {On("a", 1), On("a", 2),
                                                On("b", 3), On("b", 4)};
  candidates[1].failed_formations = 1;
  EXPECT_THAT(ChooseMembers(candidates, 2, kStart, kWait).members,
              ElementsAre(3, 4));
}

}  // namespace
}  // namespace ithaca::server
