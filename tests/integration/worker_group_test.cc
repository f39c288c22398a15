// The coordinator's control plane with real ithaca-worker processes: groups
// form, answer rightly, break, and form anew.

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/plan_policy.h"
#include "core/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/group_manager_impl.h"
#include "server/local_worker_supervisor.h"
#include "tests/integration/rank_calls.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {
namespace {

using server::Group;
using server::GroupFailureReason;
using server::GroupManagerImpl;
using server::GroupManagerOptions;
using server::GroupObserver;
using server::LocalWorkerOptions;
using server::LocalWorkerSupervisor;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(60);

class RecordingObserver : public GroupObserver {
 public:
  void OnGroupFormed(const Group& group) override {
    absl::MutexLock lock(&mutex_);
    formed_.push_back(group);
  }
  void OnGroupDraining(std::string_view name, uint64_t generation) override {
    manager->Release(name, generation);
  }
  void OnGroupLost(std::string_view, uint64_t generation,
                   GroupFailureReason reason, std::string_view) override {
    absl::MutexLock lock(&mutex_);
    lost_.push_back({generation, reason});
  }

  struct Loss {
    uint64_t generation;
    GroupFailureReason reason;
  };

  // The index-th event; an empty group or loss if it does not come.
  Group Formed(size_t index) { return Await(&formed_, index); }
  Loss Lost(size_t index) { return Await(&lost_, index); }
  size_t lost_count() {
    absl::MutexLock lock(&mutex_);
    return lost_.size();
  }

  server::GroupManager* manager = nullptr;

 private:
  template <typename T>
  T Await(std::vector<T>* events, size_t index) {
    absl::MutexLock lock(&mutex_);
    auto there = [&] { return events->size() > index; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kDeadline)) {
      ADD_FAILURE() << "no event " << index << " in time";
      return T{};
    }
    return (*events)[index];
  }

  absl::Mutex mutex_;
  std::vector<Group> formed_;
  std::vector<Loss> lost_;
};

class WorkerGroupTest : public ::testing::Test {
 protected:
  // Enough silence for a loaded machine, but where a test freezes a worker.
  void Start(int group_size, int workers,
             std::vector<std::string> worker_arguments = {},
             absl::Duration heartbeat_limit = absl::Seconds(10)) {
    GroupManagerOptions options;
    options.group_size = group_size;
    options.version = std::string(Version());
    options.heartbeat_limit = heartbeat_limit;
    options.collective_timeout = absl::Seconds(20);
    options.kill_local_slot = [this](int slot) { supervisor_->KillSlot(slot); };
    manager_ = std::make_unique<GroupManagerImpl>(options);
    observer_.manager = manager_.get();
    manager_->SetObserver(&observer_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    manager_->AddTo(&builder);
    server_ = builder.BuildAndStart();

    LocalWorkerOptions local;
    local.workers = workers;
    local.coordinator_address = absl::StrCat("127.0.0.1:", port);
    local.worker_binary = "worker/ithaca-worker";
    local.worker_arguments = std::move(worker_arguments);
    supervisor_ = std::make_unique<LocalWorkerSupervisor>(local);
    ASSERT_TRUE(supervisor_->Start().ok());
  }

  void TearDown() override {
    if (supervisor_ != nullptr) supervisor_->Stop();
    if (manager_ != nullptr) manager_->Stop();
    if (server_ != nullptr) server_->Shutdown();
    server_.reset();
    manager_.reset();
  }

  // The call's number counts up within a generation.
  testing::CallResult Call(const Group& group, const SequenceParallelPlan& plan,
                           const oracle::CallInputs& inputs,
                           uint64_t call_number) {
    std::vector<std::string> addresses;
    std::vector<internal::v1::RunAttentionRequest> requests;
    for (int rank = 0; rank < plan.world_size; ++rank) {
      addresses.push_back(group.members[static_cast<size_t>(rank)].address);
      requests.push_back(testing::MakeRankRequest(plan, group.generation,
                                                  call_number, inputs, rank));
    }
    return testing::CallRanks(addresses, requests);
  }

  void ExpectRightAnswer(const Group& group, const AttentionShape& shape,
                         uint64_t call_number,
                         HeadSchedule schedule = HeadSchedule::kFused) {
    ASSERT_FALSE(group.members.empty());
    const int world_size = static_cast<int>(group.members.size());
    AttentionOptions options;
    options.softmax_scale = oracle::DefaultScale(shape);
    options.schedule = schedule;
    const SequenceParallelPlan plan = *MakeSequenceParallelPlan(
        shape, options, world_size, PlanPolicyFor("cpu", shape, world_size));
    const oracle::CallInputs inputs = oracle::RandomInputs(shape, call_number);
    const testing::CallResult result = Call(group, plan, inputs, call_number);
    for (const grpc::Status& status : result.statuses) {
      ASSERT_TRUE(status.ok()) << status.error_message();
    }
    const std::vector<double> expected =
        oracle::Attention(shape, options.softmax_scale, inputs);
    const std::vector<double> actual = oracle::Decode(
        shape.dtype, testing::JoinOutputs(plan, result.responses));
    EXPECT_LE(oracle::RelativeL2Error(actual, expected),
              oracle::AcceptedError(shape.dtype));
    for (const auto& response : result.responses) {
      EXPECT_EQ(response.execution().stage_seconds_size(), 9);
      EXPECT_GT(response.execution().total_seconds(), 0);
    }
  }

  static AttentionShape Shape() {
    AttentionShape shape;
    shape.batch = 2;
    shape.image_tokens = 13;
    shape.text_tokens = 5;
    shape.valid_text_tokens = {5, 2};
    shape.num_heads = 6;
    shape.num_kv_heads = 3;
    shape.head_dim = 16;
    return shape;
  }

  RecordingObserver observer_;
  std::unique_ptr<GroupManagerImpl> manager_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<LocalWorkerSupervisor> supervisor_;
};

class WorkerGroupSizeTest : public WorkerGroupTest,
                            public ::testing::WithParamInterface<int> {};

TEST_P(WorkerGroupSizeTest, AGroupAnswersRightly) {
  Start(GetParam(), GetParam());
  const Group group = observer_.Formed(0);
  ASSERT_EQ(group.members.size(), static_cast<size_t>(GetParam()));
  uint64_t call = 0;
  AttentionShape shape = Shape();
  ExpectRightAnswer(group, shape, ++call);
  shape.order = TokenOrder::kTextFirst;
  ExpectRightAnswer(group, shape, ++call, HeadSchedule::kPerHead);
  shape.dtype = DataType::kBFloat16;
  shape.image_queries_only = true;
  ExpectRightAnswer(group, shape, ++call);
  shape = Shape();
  shape.image_tokens = 1;  // fewer than ranks
  ExpectRightAnswer(group, shape, ++call);
  shape.text_tokens = 0;
  shape.valid_text_tokens = {0, 0};
  ExpectRightAnswer(group, shape, ++call);
}

INSTANTIATE_TEST_SUITE_P(Sizes, WorkerGroupSizeTest,
                         ::testing::Values(1, 2, 4));

TEST_F(WorkerGroupTest, CallsThatArriveOutOfOrderRunInOrder) {
  Start(2, 2);
  const Group group = observer_.Formed(0);
  ASSERT_EQ(group.members.size(), 2u);
  std::thread second([&] { ExpectRightAnswer(group, Shape(), 2); });
  std::thread third([&] { ExpectRightAnswer(group, Shape(), 3); });
  absl::SleepFor(absl::Milliseconds(50));
  ExpectRightAnswer(group, Shape(), 1);
  second.join();
  third.join();
}

TEST_F(WorkerGroupTest, AKilledWorkerEndsTheGroupAndItsSuccessorMakesTheNext) {
  Start(2, 2);
  const Group first = observer_.Formed(0);
  ExpectRightAnswer(first, Shape(), 1);
  ASSERT_EQ(kill(supervisor_->Pids()[1], SIGKILL), 0);
  const RecordingObserver::Loss loss = observer_.Lost(0);
  EXPECT_EQ(loss.generation, first.generation);
  EXPECT_EQ(loss.reason, GroupFailureReason::kWorkerLost);
  const Group second = observer_.Formed(1);
  EXPECT_EQ(second.name, first.name);
  EXPECT_GT(second.generation, first.generation);
  ExpectRightAnswer(second, Shape(), 1);
}

TEST_F(WorkerGroupTest, AKilledWorkerFreesThoseThatWaitForIt) {
  Start(2, 2, {"--inject-delay-before-exchange-ms=300"});
  const Group group = observer_.Formed(0);
  ASSERT_EQ(group.members.size(), 2u);
  const AttentionShape shape = Shape();
  const SequenceParallelPlan plan = *MakeSequenceParallelPlan(shape, {}, 2);
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 1);
  testing::CallResult result;
  std::thread caller([&] { result = Call(group, plan, inputs, 1); });
  absl::SleepFor(absl::Milliseconds(100));
  ASSERT_EQ(kill(supervisor_->Pids()[1], SIGKILL), 0);
  caller.join();
  for (const grpc::Status& status : result.statuses) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << status.error_message();
  }
}

TEST_F(WorkerGroupTest, AFrozenWorkerIsKilledAndReplaced) {
  Start(2, 2, {}, absl::Milliseconds(1500));
  const Group first = observer_.Formed(0);
  const std::vector<pid_t> pids = supervisor_->Pids();
  ASSERT_EQ(kill(pids[0], SIGSTOP), 0);
  EXPECT_EQ(observer_.Lost(0).reason, GroupFailureReason::kWorkerLost);
  const Group second = observer_.Formed(1);
  EXPECT_NE(supervisor_->Pids()[0], pids[0]);
  EXPECT_EQ(supervisor_->Pids()[1], pids[1]);
  ExpectRightAnswer(second, Shape(), 1);
}

TEST_F(WorkerGroupTest, AReportedFailureFormsTheSameWorkersAnew) {
  Start(2, 2);
  const Group first = observer_.Formed(0);
  const std::vector<pid_t> pids = supervisor_->Pids();
  manager_->ReportFailure(first.name, first.generation,
                          GroupFailureReason::kProbeFailed, "a test");
  EXPECT_EQ(observer_.Lost(0).reason, GroupFailureReason::kProbeFailed);
  const Group second = observer_.Formed(1);
  EXPECT_EQ(supervisor_->Pids(), pids);
  ExpectRightAnswer(second, Shape(), 1);
}

TEST_F(WorkerGroupTest, AnotherGenerationIsRefusedByTheWorker) {
  Start(1, 1);
  Group group = observer_.Formed(0);
  ASSERT_EQ(group.members.size(), 1u);
  const AttentionShape shape = Shape();
  const SequenceParallelPlan plan = *MakeSequenceParallelPlan(shape, {}, 1);
  Group stale = group;
  --stale.generation;
  const testing::CallResult refused =
      Call(stale, plan, oracle::RandomInputs(shape, 1), 1);
  EXPECT_EQ(refused.statuses[0].error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.statuses[0].error_message(),
              HasSubstr(absl::StrCat(group.generation)));
  ExpectRightAnswer(group, shape, 1);
}

TEST_F(WorkerGroupTest, ADifferentPlanBreaksTheGroupAndItFormsAnew) {
  Start(2, 2);
  const Group group = observer_.Formed(0);
  ASSERT_EQ(group.members.size(), 2u);
  const AttentionShape shape = Shape();
  SequenceParallelPlan plan = *MakeSequenceParallelPlan(shape, {}, 2);
  const oracle::CallInputs inputs = oracle::RandomInputs(shape, 1);
  std::vector<internal::v1::RunAttentionRequest> requests;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < 2; ++rank) {
    requests.push_back(
        testing::MakeRankRequest(plan, group.generation, 1, inputs, rank));
    addresses.push_back(group.members[static_cast<size_t>(rank)].address);
  }
  requests[1].mutable_call()->set_plan_fingerprint(plan.Fingerprint() + 1);
  const testing::CallResult result = testing::CallRanks(addresses, requests);
  for (const grpc::Status& status : result.statuses) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL)
        << status.error_message();
  }
  EXPECT_EQ(observer_.Lost(0).reason, GroupFailureReason::kCollectiveFailed);
  ExpectRightAnswer(observer_.Formed(1), shape, 1);
}

TEST_F(WorkerGroupTest, MoreWorkersMakeMoreGroups) {
  Start(1, 2);
  const Group first = observer_.Formed(0), second = observer_.Formed(1);
  EXPECT_NE(first.name, second.name);
  ExpectRightAnswer(first, Shape(), 1);
  ExpectRightAnswer(second, Shape(), 1);
}

TEST_F(WorkerGroupTest, StoppingTheSupervisorEndsWorkersInPeace) {
  Start(2, 2);
  const Group group = observer_.Formed(0);
  ExpectRightAnswer(group, Shape(), 1);
  supervisor_->Stop();
  // They said that they leave, and waited for their group's release.
  EXPECT_EQ(observer_.lost_count(), 0u);
  EXPECT_EQ(manager_->Workers().in_group, 0);
}

}  // namespace
}  // namespace ithaca
