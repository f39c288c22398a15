#include "server/group_lifecycle.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca::server {
namespace {

using internal::v1::WorkerCommand;
using internal::v1::WorkerEvent;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

struct Loss {
  std::string name;
  uint64_t generation;
  GroupFailureReason reason;
  std::string message;
};

class RecordingEffects : public GroupEffects {
 public:
  void Send(WorkerId worker, WorkerCommand command) override {
    sent[worker].push_back(std::move(command));
  }
  void Disconnect(WorkerId worker, absl::Status why) override {
    disconnected.emplace_back(worker, why);
  }
  void KillLocalSlot(int slot) override { killed.push_back(slot); }
  void WorkerLost(std::string_view worker, std::string_view) override {
    lost_workers.emplace_back(worker);
  }
  void WorkerLeft(std::string_view worker) override {
    left_workers.emplace_back(worker);
  }
  void OpenRendezvous(std::string_view id) override {
    EXPECT_TRUE(ever_open.insert(std::string(id)).second) << "used again";
    open.insert(std::string(id));
  }
  void CloseRendezvous(std::string_view id) override {
    EXPECT_EQ(open.erase(std::string(id)), 1u);
  }
  void GroupFormed(Group group) override { formed.push_back(group); }
  void GroupDraining(std::string, uint64_t generation) override {
    draining.push_back(generation);
  }
  void GroupLost(std::string name, uint64_t generation,
                 GroupFailureReason reason, std::string message) override {
    lost.push_back({name, generation, reason, message});
  }
  void FormationFailed(std::string, uint64_t generation,
                       std::string message) override {
    failed.push_back(message);
    failed_generations.push_back(generation);
  }

  std::map<WorkerId, std::vector<WorkerCommand>> sent;
  std::vector<std::pair<WorkerId, absl::Status>> disconnected;
  std::vector<int> killed;
  std::vector<std::string> lost_workers, left_workers;
  std::vector<uint64_t> draining;
  std::set<std::string> open, ever_open;
  std::vector<Group> formed;
  std::vector<Loss> lost;
  std::vector<std::string> failed;
  std::vector<uint64_t> failed_generations;
};

GroupManagerOptions Options(int group_size) {
  GroupManagerOptions options;
  options.group_size = group_size;
  options.version = "1";
  options.first_generation = 100;
  options.heartbeat_interval = absl::Milliseconds(500);
  options.heartbeat_limit = absl::Milliseconds(1500);
  options.formation_timeout = absl::Seconds(10);
  return options;
}

class GroupLifecycleTest : public ::testing::Test {
 protected:
  void Start(int group_size) {
    lifecycle_.emplace(Options(group_size), &effects_, now_);
  }

  absl::StatusOr<WorkerId> TryJoin(const std::string& name, int slot = -1) {
    internal::v1::Join join;
    join.set_version("1");
    join.set_worker("box/" + name);
    join.set_host("box");
    join.set_address("box:" + std::to_string(1000 + std::stoi(name)));
    join.set_device("cpu");
    if (slot >= 0) join.set_local_slot(slot);
    auto id = lifecycle_->Join(join, "127.0.0.1", now_);
    if (id.ok()) lifecycle_->Welcome(*id, now_);
    return id;
  }

  WorkerId Join(int name, int slot = -1) {
    return TryJoin(std::to_string(name), slot).value();
  }

  const WorkerCommand& Last(WorkerId worker) {
    return effects_.sent[worker].back();
  }

  void Answer(WorkerId worker, bool formed, uint64_t generation = 0) {
    WorkerEvent event;
    auto* result = event.mutable_form_result();
    result->set_group(Last(worker).form_group().group());
    result->set_generation(
        generation != 0 ? generation : Last(worker).form_group().generation());
    result->set_formed(formed);
    if (!formed) result->set_error("cannot connect");
    lifecycle_->OnEvent(worker, event, now_);
  }

  void Heartbeat(WorkerId worker) {
    WorkerEvent event;
    event.mutable_heartbeat();
    lifecycle_->OnEvent(worker, event, now_);
  }

  // It aborts the groups that it was told to leave.
  void Abort(WorkerId worker) {
    const std::vector<WorkerCommand> sent = effects_.sent[worker];
    for (const WorkerCommand& command : sent) {
      if (!command.has_leave_group()) continue;
      WorkerEvent event;
      event.mutable_left_group()->set_generation(
          command.leave_group().generation());
      lifecycle_->OnEvent(worker, event, now_);
    }
  }

  void Leave(WorkerId worker) {
    WorkerEvent event;
    event.mutable_leaving();
    lifecycle_->OnEvent(worker, event, now_);
  }

  // Time passes as in the real loop: never longer than NextDeadline says.
  void Pass(absl::Duration time, const std::vector<WorkerId>& beating) {
    const absl::Time end = now_ + time;
    while (now_ < end) {
      now_ = std::min(end, now_ + absl::Milliseconds(100));
      for (WorkerId worker : beating) Heartbeat(worker);
      lifecycle_->Tick(now_);
    }
  }

  // Two workers in one formed group, "g0".
  std::pair<WorkerId, WorkerId> FormPair() {
    Start(2);
    const WorkerId a = Join(1), b = Join(2);
    Answer(a, true);
    Answer(b, true);
    EXPECT_THAT(effects_.formed, SizeIs(1));
    return {a, b};
  }

  absl::Time now_ = absl::UnixEpoch();
  RecordingEffects effects_;
  std::optional<GroupLifecycle> lifecycle_;
};

TEST_F(GroupLifecycleTest, WelcomeIsTheFirstCommand) {
  Start(2);
  const WorkerId a = Join(1);
  ASSERT_THAT(effects_.sent[a], SizeIs(1));
  EXPECT_EQ(Last(a).welcome().heartbeat_interval_seconds(), 0.5);
  EXPECT_THAT(lifecycle_->Groups(), IsEmpty());
  EXPECT_EQ(lifecycle_->Workers().joined, 1);
}

TEST_F(GroupLifecycleTest, AGroupFormsAsWorkersArrive) {
  Start(2);
  const WorkerId a = Join(1), b = Join(2);
  for (WorkerId worker : {a, b}) {
    const auto& form = Last(worker).form_group();
    EXPECT_EQ(form.group(), "g0");
    EXPECT_EQ(form.generation(), 100u);
    EXPECT_EQ(form.world_size(), 2u);
    EXPECT_EQ(form.rank(), worker == a ? 0u : 1u);
    EXPECT_EQ(form.formation_timeout_seconds(), 10);
    EXPECT_EQ(effects_.open.count(form.rendezvous_id()), 1u);
  }
  EXPECT_EQ(lifecycle_->Workers().forming, 2);
  Answer(a, true);
  EXPECT_THAT(effects_.formed, IsEmpty());
  Answer(b, true);
  ASSERT_THAT(effects_.formed, SizeIs(1));
  EXPECT_EQ(effects_.formed[0].members[1].address, "box:1002");
  EXPECT_EQ(lifecycle_->Workers().in_group, 2);
  EXPECT_THAT(lifecycle_->JoinedWorkers(), SizeIs(2));
  // Formed is not proven.
  EXPECT_EQ(lifecycle_->Groups()[0].state, GroupState::kForming);
  lifecycle_->MarkReady("g0", 99);
  EXPECT_EQ(lifecycle_->Groups()[0].state, GroupState::kForming);
  lifecycle_->MarkReady("g0", 100);
  EXPECT_EQ(lifecycle_->Groups()[0].state, GroupState::kReady);
}

TEST_F(GroupLifecycleTest, MoreWorkersMakeMoreGroups) {
  Start(1);
  Join(1);
  Join(2);
  Join(3);
  std::vector<std::string> names;
  for (const Group& group : lifecycle_->Groups()) names.push_back(group.name);
  EXPECT_THAT(names, ElementsAre("g0", "g1", "g2"));
}

TEST_F(GroupLifecycleTest, ALostWorkerEndsItsGroupAndTheSpareSteps) {
  auto [a, b] = FormPair();
  const WorkerId spare = Join(3);
  lifecycle_->OnStreamEnd(b, now_);
  ASSERT_THAT(effects_.lost, SizeIs(1));
  EXPECT_EQ(effects_.lost[0].generation, 100u);
  EXPECT_EQ(effects_.lost[0].reason, GroupFailureReason::kWorkerLost);
  EXPECT_THAT(effects_.lost[0].message, HasSubstr("box/2"));
  EXPECT_THAT(effects_.lost_workers, ElementsAre("box/2"));
  const auto& commands = effects_.sent[a];
  EXPECT_EQ(commands[commands.size() - 2].leave_group().generation(), 100u);
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
  EXPECT_EQ(Last(spare).form_group().rank(), 1u);
  EXPECT_EQ(Last(a).form_group().group(), "g0");
  EXPECT_THAT(effects_.open, SizeIs(1));
}

TEST_F(GroupLifecycleTest, WithoutASpareTheGroupIsFailedUntilOneJoins) {
  auto [a, b] = FormPair();
  lifecycle_->OnStreamEnd(b, now_);
  EXPECT_EQ(lifecycle_->Groups()[0].state, GroupState::kFailed);
  EXPECT_THAT(lifecycle_->Groups()[0].members, IsEmpty());
  EXPECT_EQ(lifecycle_->Workers().joined, 1);
  ASSERT_THAT(lifecycle_->JoinedWorkers(), SizeIs(1));
  EXPECT_EQ(lifecycle_->JoinedWorkers()[0].address, "box:1001");
  EXPECT_TRUE(Last(a).has_leave_group());
  EXPECT_THAT(effects_.open, IsEmpty());
  Join(3);
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
}

TEST_F(GroupLifecycleTest, AFailedGroupIsForgottenInTheEnd) {
  auto [a, b] = FormPair();
  lifecycle_->OnStreamEnd(b, now_);
  Abort(a);
  Pass(absl::Seconds(61), {a});
  EXPECT_THAT(lifecycle_->Groups(), IsEmpty());
  Join(3);
  EXPECT_EQ(Last(a).form_group().group(), "g0");
}

TEST_F(GroupLifecycleTest, SilenceIsDeathAndALocalWorkerIsKilled) {
  Start(2);
  const WorkerId a = Join(1, 0), b = Join(2, 1);
  Answer(a, true);
  Answer(b, true);
  Pass(absl::Milliseconds(1400), {a});
  EXPECT_THAT(effects_.lost, IsEmpty());
  Pass(absl::Milliseconds(200), {a});
  ASSERT_THAT(effects_.lost, SizeIs(1));
  EXPECT_EQ(effects_.lost[0].reason, GroupFailureReason::kWorkerLost);
  EXPECT_THAT(effects_.killed, ElementsAre(1));
  ASSERT_THAT(effects_.disconnected, SizeIs(1));
  EXPECT_EQ(effects_.disconnected[0].first, b);
  EXPECT_EQ(effects_.disconnected[0].second.code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(GroupLifecycleTest, ACoordinatorThatSleptBlamesNobody) {
  FormPair();
  now_ += absl::Seconds(30);
  lifecycle_->Tick(now_);
  EXPECT_THAT(effects_.lost, IsEmpty());
  EXPECT_THAT(effects_.disconnected, IsEmpty());
}

TEST_F(GroupLifecycleTest, TheNextDeadlineIsNeverPastTheHeartbeatLimit) {
  FormPair();
  EXPECT_LE(lifecycle_->NextDeadline(), now_ + absl::Milliseconds(500));
}

TEST_F(GroupLifecycleTest, AFormationThatFailsIsTriedAnewAfterAPause) {
  Start(2);
  const WorkerId a = Join(1), b = Join(2);
  const std::string first_id = Last(a).form_group().rendezvous_id();
  Answer(b, false);
  ASSERT_THAT(effects_.failed, SizeIs(1));
  EXPECT_THAT(effects_.failed[0], HasSubstr("box/2: cannot connect"));
  EXPECT_TRUE(Last(a).has_leave_group());
  EXPECT_THAT(effects_.lost, IsEmpty());
  Pass(absl::Milliseconds(100), {a, b});
  EXPECT_TRUE(Last(a).has_leave_group());
  Pass(absl::Milliseconds(200), {a, b});
  ASSERT_TRUE(Last(a).has_form_group());
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
  EXPECT_NE(Last(a).form_group().rendezvous_id(), first_id);
}

TEST_F(GroupLifecycleTest, AFormationIsBounded) {
  Start(2);
  const WorkerId a = Join(1), b = Join(2);
  Answer(a, true);
  Pass(absl::Seconds(9), {a, b});
  EXPECT_THAT(effects_.failed, IsEmpty());
  Pass(absl::Milliseconds(1100), {a, b});
  ASSERT_THAT(effects_.failed, SizeIs(1));
  EXPECT_THAT(effects_.failed[0], HasSubstr("within 10s"));
}

TEST_F(GroupLifecycleTest, AMemberThatDiesWhileFormingIsReplacedAtOnce) {
  Start(2);
  const WorkerId a = Join(1), b = Join(2), spare = Join(3);
  lifecycle_->OnStreamEnd(b, now_);
  EXPECT_THAT(effects_.failed_generations, ElementsAre(100u));
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
  EXPECT_EQ(Last(spare).form_group().generation(), 101u);
}

TEST_F(GroupLifecycleTest, EventsOfAnEarlierGenerationAreIgnored) {
  auto [a, b] = FormPair();
  lifecycle_->ReportFailure("g0", 100, GroupFailureReason::kCollectiveFailed,
                            "broken", now_);
  ASSERT_TRUE(Last(a).has_form_group());
  Answer(a, true, 100);
  Answer(b, true, 100);
  Answer(a, false, 100);
  lifecycle_->ReportFailure("g0", 100, GroupFailureReason::kCallTimeout, "late",
                            now_);
  EXPECT_THAT(effects_.formed, SizeIs(1));
  EXPECT_THAT(effects_.lost, SizeIs(1));
  EXPECT_THAT(effects_.failed, IsEmpty());
  Answer(a, true);
  Answer(b, true);
  EXPECT_THAT(effects_.formed, SizeIs(2));
}

TEST_F(GroupLifecycleTest, AWorkersOwnReportEndsItsGroup) {
  auto [a, b] = FormPair();
  WorkerEvent event;
  event.mutable_group_failure()->set_group("g0");
  event.mutable_group_failure()->set_generation(100);
  event.mutable_group_failure()->set_error("peer reset");
  lifecycle_->OnEvent(b, event, now_);
  ASSERT_THAT(effects_.lost, SizeIs(1));
  EXPECT_EQ(effects_.lost[0].reason, GroupFailureReason::kCollectiveFailed);
  EXPECT_THAT(effects_.lost[0].message, HasSubstr("box/2: peer reset"));
  EXPECT_TRUE(Last(a).has_form_group());
}

TEST_F(GroupLifecycleTest, AfterATimeoutOnlyThoseHeardOfFormAnew) {
  auto [a, b] = FormPair();
  const WorkerId spare = Join(3);
  lifecycle_->ReportFailure("g0", 100, GroupFailureReason::kCallTimeout,
                            "call 7", now_);
  EXPECT_TRUE(Last(a).has_leave_group());
  Heartbeat(a);
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
  EXPECT_EQ(Last(spare).form_group().generation(), 101u);
  EXPECT_TRUE(Last(b).has_leave_group());
}

TEST_F(GroupLifecycleTest, AProcessThatJoinsAnewReplacesItself) {
  auto [a, b] = FormPair();
  const WorkerId again = Join(2);
  EXPECT_NE(again, b);
  ASSERT_THAT(effects_.lost, SizeIs(1));
  EXPECT_EQ(effects_.disconnected[0].first, b);
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
  EXPECT_EQ(Last(again).form_group().generation(), 101u);
  EXPECT_EQ(effects_.sent[again][0].has_welcome(), true);
  // The old stream's end is news of nobody.
  lifecycle_->OnStreamEnd(b, now_);
  EXPECT_THAT(effects_.lost, SizeIs(1));
}

TEST_F(GroupLifecycleTest, ALocalWorkerThatCannotAbortInTimeIsKilled) {
  Start(2);
  const WorkerId a = Join(1, 0), b = Join(2, 1), c = Join(3, 2);
  Answer(a, true);
  Answer(b, true);
  lifecycle_->ReportFailure("g0", 100, GroupFailureReason::kCollectiveFailed,
                            "broken", now_);
  Abort(a);
  Pass(absl::Milliseconds(4900), {a, b, c});
  EXPECT_THAT(effects_.killed, IsEmpty());
  Pass(absl::Milliseconds(200), {a, b, c});
  EXPECT_THAT(effects_.killed, ElementsAre(1));
  EXPECT_THAT(effects_.lost_workers, ElementsAre("box/2"));
  EXPECT_EQ(effects_.disconnected[0].first, b);
  // Whoever is left forms on.
  EXPECT_EQ(Last(c).form_group().generation(),
            Last(a).form_group().generation());
}

TEST_F(GroupLifecycleTest, AnotherHostsWorkerThatCannotAbortIsAskedToExit) {
  auto [a, b] = FormPair();
  lifecycle_->ReportFailure("g0", 100, GroupFailureReason::kCollectiveFailed,
                            "broken", now_);
  Abort(a);
  Answer(a, true);
  Answer(b, true);
  Pass(absl::Milliseconds(5100), {a, b});
  EXPECT_THAT(effects_.killed, IsEmpty());
  EXPECT_THAT(Last(b).shutdown().reason(), HasSubstr("did not abort"));
  EXPECT_THAT(effects_.draining, ElementsAre(101u));
}

TEST_F(GroupLifecycleTest, AFailedAttemptHasItsOwnTimeLimitToEndFirst) {
  Start(2);
  const WorkerId a = Join(1, 0), b = Join(2, 1);
  lifecycle_->OnStreamEnd(b, now_);
  Pass(absl::Seconds(14), {a});
  EXPECT_THAT(effects_.killed, IsEmpty());
  Pass(absl::Seconds(2), {a});
  EXPECT_THAT(effects_.killed, ElementsAre(0));
}

TEST_F(GroupLifecycleTest, ALeavingWorkersGroupDrainsAndFormsAnewWithoutIt) {
  auto [a, b] = FormPair();
  lifecycle_->MarkReady("g0", 100);
  const WorkerId spare = Join(3);
  Leave(b);
  EXPECT_THAT(effects_.draining, ElementsAre(100u));
  EXPECT_EQ(lifecycle_->Groups()[0].state, GroupState::kDraining);
  lifecycle_->MarkReady("g0", 100);  // a probe that was under way
  EXPECT_EQ(lifecycle_->Groups()[0].state, GroupState::kDraining);
  EXPECT_TRUE(Last(b).has_form_group());  // its calls go on

  lifecycle_->Release("g0", 100, now_);
  const auto& commands = effects_.sent[b];
  EXPECT_EQ(commands[commands.size() - 2].leave_group().generation(), 100u);
  EXPECT_TRUE(Last(b).has_shutdown());
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
  EXPECT_EQ(Last(spare).form_group().generation(), 101u);
  lifecycle_->OnStreamEnd(b, now_);
  EXPECT_THAT(effects_.left_workers, ElementsAre("box/2"));
  EXPECT_THAT(effects_.lost_workers, IsEmpty());
  EXPECT_THAT(effects_.lost, IsEmpty());
  EXPECT_THAT(effects_.failed, IsEmpty());
}

TEST_F(GroupLifecycleTest, AWorkerThatLeavesWithoutAGroupMayGoAtOnce) {
  Start(2);
  const WorkerId a = Join(1);
  Leave(a);
  EXPECT_TRUE(Last(a).has_shutdown());
  const WorkerId b = Join(2);
  EXPECT_TRUE(Last(b).has_welcome());
}

TEST_F(GroupLifecycleTest, AWorkerThatLeavesWhileFormingIsNoFailure) {
  Start(2);
  const WorkerId a = Join(1), b = Join(2), c = Join(3);
  Leave(b);
  EXPECT_TRUE(Last(b).has_shutdown());
  EXPECT_EQ(Last(a).form_group().generation(), 101u);
  EXPECT_EQ(Last(c).form_group().generation(), 101u);
  EXPECT_THAT(effects_.failed, IsEmpty());
}

TEST_F(GroupLifecycleTest, ALeavingWorkerThatDiesBeforeItsCallsEndIsLost) {
  auto [a, b] = FormPair();
  Leave(b);
  lifecycle_->OnStreamEnd(b, now_);
  ASSERT_THAT(effects_.lost, SizeIs(1));
  EXPECT_EQ(effects_.lost[0].reason, GroupFailureReason::kWorkerLost);
}

TEST_F(GroupLifecycleTest, OnlyLocalWorkersAreDismissed) {
  Start(3);
  const WorkerId local = Join(1, 0), remote = Join(2);
  lifecycle_->DismissLocalWorkers("bye");
  EXPECT_EQ(Last(local).shutdown().reason(), "bye");
  EXPECT_TRUE(Last(remote).has_welcome());
}

TEST_F(GroupLifecycleTest, ADrainingCoordinatorFormsNothing) {
  auto [a, b] = FormPair();
  lifecycle_->MarkReady("g0", 100);
  lifecycle_->Drain();
  EXPECT_EQ(lifecycle_->Groups()[0].state, GroupState::kDraining);
  lifecycle_->OnStreamEnd(b, now_);
  EXPECT_THAT(effects_.lost, SizeIs(1));
  Join(3);
  EXPECT_TRUE(Last(a).has_leave_group());
}

}  // namespace
}  // namespace ithaca::server
