#include "server/region_attacher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/fake_group.h"
#include "server/mock_group_manager.h"

namespace ithaca::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::UnorderedElementsAre;

Group InState(Group group, GroupState state) {
  group.state = state;
  return group;
}

class RegionAttacherTest : public ::testing::Test {
 protected:
  RegionAttacherTest() {
    Present({InState(ready_.Describe("g1", 1), GroupState::kReady),
             InState(forming_.Describe("g2", 2), GroupState::kForming)});
  }

  void Present(const std::vector<Group>& groups) {
    ON_CALL(manager_, Groups).WillByDefault(Return(groups));
    std::vector<GroupMember> joined;
    for (const Group& group : groups) {
      joined.insert(joined.end(), group.members.begin(), group.members.end());
    }
    ON_CALL(manager_, JoinedWorkers).WillByDefault(Return(joined));
  }

  static internal::v1::Region Region(uint64_t id) {
    internal::v1::Region region;
    region.set_id(id);
    return region;
  }

  absl::Status Attach(RegionAttacher* attacher, uint64_t id) {
    absl::Notification done;
    absl::Status outcome;
    attacher->Attach(Region(id), [&](absl::Status status) {
      outcome = std::move(status);
      done.Notify();
    });
    done.WaitForNotification();
    return outcome;
  }
  void Detach(RegionAttacher* attacher, uint64_t id) {
    absl::Notification done;
    attacher->Detach(Region(id), [&] { done.Notify(); });
    done.WaitForNotification();
  }

  FakeGroup ready_{2};
  FakeGroup forming_{1};
  NiceMock<MockGroupManager> manager_;
  RegionAttacher attacher_{&manager_, {}};
};

TEST_F(RegionAttacherTest, EveryMemberOfAReadyGroupIsAsked) {
  EXPECT_TRUE(Attach(&attacher_, 5).ok());
  EXPECT_TRUE(Attach(&attacher_, 6).ok());
  EXPECT_THAT(ready_.attached(0), UnorderedElementsAre(5, 6));
  EXPECT_THAT(ready_.attached(1), UnorderedElementsAre(5, 6));
  EXPECT_THAT(forming_.attached(0), IsEmpty());
}

TEST_F(RegionAttacherTest, EveryWorkerForgetsAlsoWhileItsGroupIsLost) {
  EXPECT_TRUE(Attach(&attacher_, 5).ok());
  EXPECT_TRUE(Attach(&attacher_, 6).ok());
  ON_CALL(manager_, Groups).WillByDefault(Return(std::vector<Group>{}));
  Detach(&attacher_, 5);
  EXPECT_THAT(ready_.attached(0), UnorderedElementsAre(6));
  EXPECT_THAT(ready_.attached(1), UnorderedElementsAre(6));
}

TEST_F(RegionAttacherTest, ARefusalNamesTheWorkerAndItsReason) {
  const std::vector<std::pair<grpc::StatusCode, absl::StatusCode>> codes = {
      // The coordinator has it: it is the worker that is in the wrong place.
      {grpc::StatusCode::NOT_FOUND, absl::StatusCode::kFailedPrecondition},
      {grpc::StatusCode::FAILED_PRECONDITION,
       absl::StatusCode::kFailedPrecondition},
      {grpc::StatusCode::INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument},
      {grpc::StatusCode::UNIMPLEMENTED, absl::StatusCode::kUnimplemented}};
  for (const auto& [given, expected] : codes) {
    ready_.FailNextAttach(1, {given, "another name space"});
    const absl::Status status = Attach(&attacher_, 5);
    EXPECT_EQ(status.code(), expected);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("worker g1/1: another name space"));
  }
}

TEST_F(RegionAttacherTest, AMemberThatIsGoneHoldsNobodyUp) {
  Group group = InState(ready_.Describe("g1", 1), GroupState::kReady);
  group.members.push_back({"gone/1", "127.0.0.1:1", "cpu", {}});
  Present({group});
  EXPECT_TRUE(Attach(&attacher_, 5).ok());
  EXPECT_THAT(ready_.attached(0), UnorderedElementsAre(5));
  Detach(&attacher_, 5);
  EXPECT_THAT(ready_.attached(0), IsEmpty());
}

TEST_F(RegionAttacherTest, WithoutWorkersThereIsNobodyToAsk) {
  Present({});
  EXPECT_TRUE(Attach(&attacher_, 5).ok());
  Detach(&attacher_, 5);
}

TEST_F(RegionAttacherTest, AMemberThatDoesNotAnswerIsNotWaitedForForEver) {
  RegionAttacher impatient(&manager_,
                           {absl::Milliseconds(50), absl::Milliseconds(50)});
  ready_.HoldRegions();
  const absl::Status status = Attach(&impatient, 5);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker g1/0"));
  Detach(&impatient, 5);
}

TEST_F(RegionAttacherTest, StopCutsShortWhatIsOut) {
  ready_.HoldRegions();
  absl::Notification done;
  attacher_.Attach(Region(5), [&](const absl::Status& status) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    done.Notify();
  });
  ready_.AwaitHeldRegions(2);
  attacher_.Stop();
  EXPECT_TRUE(done.HasBeenNotified());
  EXPECT_TRUE(absl::IsUnavailable(Attach(&attacher_, 6)));
  Detach(&attacher_, 5);
}

}  // namespace
}  // namespace ithaca::server
