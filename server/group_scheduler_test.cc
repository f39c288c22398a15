#include "server/group_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "server/admission_queue.h"
#include "server/fake_group.h"
#include "server/metrics.h"
#include "server/mock_group_manager.h"
#include "server/pending_call.h"
#include "server/status_mapping.h"

namespace ithaca::server {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::NiceMock;

constexpr absl::Duration kPatience = absl::Seconds(30);

// A client of the scheduler: one call and its end.
class Client {
 public:
  // ZERO with 4 tokens of 2 heads: the output is the mean of the values, which
  // are base, base + 1, base + 2, base + 3.
  explicit Client(const std::string& id, float base = 0)
      : base_(base),
        call_(std::make_shared<PendingCall>(
            [this](absl::StatusOr<CallOutcome> outcome) {
              outcome_ = std::move(outcome);
              ended_.Notify();
            })) {
    call_->request_id = id;
    AttentionShape& shape = call_->shape;
    shape.dtype = DataType::kFloat32;
    shape.image_tokens = 4;
    shape.valid_text_tokens = {0};
    shape.num_heads = 2;
    shape.num_kv_heads = 2;
    shape.head_dim = 4;
    std::vector<float> value;
    for (int token = 0; token < 4; ++token) {
      value.insert(value.end(), 8, base + static_cast<float>(token));
    }
    call_->tensors.query.Append(grpc::Slice(std::string(128, '\0')));
    call_->tensors.key = call_->tensors.query;
    call_->tensors.value.Append(
        grpc::Slice(value.data(), value.size() * sizeof(float)));
  }

  const std::shared_ptr<PendingCall>& call() { return call_; }
  bool ended() const { return ended_.HasBeenNotified(); }

  const absl::StatusOr<CallOutcome>& Await() {
    EXPECT_TRUE(ended_.WaitForNotificationWithTimeout(kPatience));
    return *outcome_;
  }

  void ExpectRightNumbers() {
    const auto& outcome = Await();
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    const std::string bytes = outcome->output.Flatten();
    ASSERT_EQ(bytes.size(), 128u);
    std::vector<float> values(32);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    for (const float value : values) EXPECT_FLOAT_EQ(value, base_ + 1.5F);
  }

  void ExpectError(absl::StatusCode code) {
    EXPECT_EQ(Await().status().code(), code) << Await().status();
  }

 private:
  const float base_;
  absl::Notification ended_;
  std::optional<absl::StatusOr<CallOutcome>> outcome_;
  const std::shared_ptr<PendingCall> call_;
};

class GroupSchedulerTest : public ::testing::Test {
 protected:
  GroupSchedulerTest() : metrics_("test", "cpu"), queue_(4) {
    ON_CALL(manager_, MarkReady).WillByDefault([this] {
      const absl::MutexLock lock(&mutex_);
      ++marked_ready_;
    });
    ON_CALL(manager_, ReportFailure)
        .WillByDefault([this](std::string_view name, uint64_t generation,
                              GroupFailureReason reason,
                              std::string_view message) {
          {
            const absl::MutexLock lock(&mutex_);
            reasons_.push_back(reason);
          }
          // As the real manager, which may do so before it returns.
          scheduler_->OnGroupLost(name, generation, reason, message);
        });
  }

  ~GroupSchedulerTest() override {
    if (scheduler_ != nullptr) scheduler_->Stop();
  }

  void StartScheduler(GroupScheduler::Options options = {}) {
    // Nothing is probed behind a test's back unless it asks for it.
    if (options.probe_interval == GroupScheduler::Options().probe_interval) {
      options.probe_interval = absl::Hours(1);
    }
    scheduler_ = std::make_unique<GroupScheduler>(&manager_, &queue_, &metrics_,
                                                  std::move(options));
  }

  void StartReady(GroupScheduler::Options options = {}) {
    StartScheduler(std::move(options));
    scheduler_->OnGroupFormed(group_.Describe("g1", 1));
    AwaitTrue([this] { return scheduler_->Ready(); });
  }

  static void AwaitTrue(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + kPatience;
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  int marked_ready() {
    const absl::MutexLock lock(&mutex_);
    return marked_ready_;
  }
  std::vector<GroupFailureReason> reasons() {
    const absl::MutexLock lock(&mutex_);
    return reasons_;
  }

  NiceMock<MockGroupManager> manager_;
  Metrics metrics_;
  AdmissionQueue queue_;
  FakeGroup group_{2};
  FakeGroup other_group_{2};
  absl::Mutex mutex_;
  int marked_ready_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<GroupFailureReason> reasons_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GroupScheduler> scheduler_;
};

TEST_F(GroupSchedulerTest, AGroupIsReadyOnceItAnsweredAProbeRightly) {
  StartScheduler();
  group_.Hold();
  scheduler_->OnGroupFormed(group_.Describe("g1", 1));
  group_.AwaitHeld(1);
  EXPECT_FALSE(scheduler_->Ready());
  EXPECT_EQ(marked_ready(), 0);
  EXPECT_FALSE(scheduler_->Kernels().has_value());
  group_.Release();
  AwaitTrue([this] { return scheduler_->Ready(); });
  EXPECT_TRUE(scheduler_->Ready("g1", 1));
  EXPECT_FALSE(scheduler_->Ready("g1", 2));
  AwaitTrue([this] { return marked_ready() == 1; });
  EXPECT_THAT(*scheduler_->Kernels(), ElementsAre(AttentionKernelKind::kMath,
                                                  AttentionKernelKind::kFlash));
}

TEST_F(GroupSchedulerTest, AGroupWithWrongNumbersIsReportedAndNeverReady) {
  group_.AnswerWrongly();
  StartScheduler();
  scheduler_->OnGroupFormed(group_.Describe("g1", 1));
  AwaitTrue([this] { return !reasons().empty(); });
  EXPECT_THAT(reasons(), ElementsAre(GroupFailureReason::kProbeFailed));
  EXPECT_FALSE(scheduler_->Ready());
  EXPECT_EQ(marked_ready(), 0);
}

TEST_F(GroupSchedulerTest, WithoutAReadyGroupACallIsUnavailableAtOnce) {
  StartScheduler();
  Client client("a");
  scheduler_->Submit(client.call());
  EXPECT_TRUE(client.ended());
  client.ExpectError(absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryHint(client.Await().status()).has_value());
}

TEST_F(GroupSchedulerTest, ACallGetsItsNumbersAndItsReport) {
  StartReady();
  Client client("a", 100);
  scheduler_->Submit(client.call());
  client.ExpectRightNumbers();
  EXPECT_EQ(client.Await()->report.group(), "g1");
  EXPECT_EQ(client.Await()->report.world_size(), 2u);
}

TEST_F(GroupSchedulerTest, CallsAreNumberedFrom1WithoutGaps) {
  StartReady();
  for (int i = 0; i < 5; ++i) {
    Client client(std::to_string(i), static_cast<float>(i));
    scheduler_->Submit(client.call());
    client.ExpectRightNumbers();
  }
  std::vector<uint64_t> expected(6);  // the probe was the first
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(group_.call_numbers(), expected);
}

TEST_F(GroupSchedulerTest, AGroupHasNoMoreCallsThanItsWindowAndTheRestQueue) {
  StartReady();
  group_.Hold();
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(6);
  for (int i = 0; i < 6; ++i) {
    clients.push_back(
        std::make_unique<Client>(std::to_string(i), static_cast<float>(i)));
    scheduler_->Submit(clients.back()->call());
  }
  group_.AwaitHeld(2);
  EXPECT_EQ(queue_.size(), 4);
  // The queue is full now.
  Client refused("refused");
  scheduler_->Submit(refused.call());
  refused.ExpectError(absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryHint(refused.Await().status()).has_value());
  EXPECT_THAT(group_.request_ids(), ElementsAre("0", "1"));
  group_.Release();
  for (auto& client : clients) client->ExpectRightNumbers();
  EXPECT_EQ(group_.request_ids().size(), 6u);
}

TEST_F(GroupSchedulerTest, ACancelledQueuedCallEndsAtOnceAndReachesNoRank) {
  StartReady();
  group_.Hold();
  Client first("1"), second("2"), third("3"), fourth("4");
  for (Client* client : {&first, &second, &third, &fourth}) {
    scheduler_->Submit(client->call());
  }
  group_.AwaitHeld(2);
  scheduler_->Cancel(third.call(), absl::DeadlineExceededError("late"));
  EXPECT_TRUE(third.ended());
  third.ExpectError(absl::StatusCode::kDeadlineExceeded);
  group_.Release();
  first.ExpectRightNumbers();
  second.ExpectRightNumbers();
  fourth.ExpectRightNumbers();
  EXPECT_THAT(group_.request_ids(), ElementsAre("1", "2", "4"));
}

TEST_F(GroupSchedulerTest, ACancelledRunningCallFreesItsClientAndLeavesAGroup) {
  StartReady();
  group_.Hold();
  Client client("1");
  scheduler_->Submit(client.call());
  group_.AwaitHeld(1);
  scheduler_->Cancel(client.call(), absl::CancelledError("gone"));
  EXPECT_TRUE(client.ended());
  client.ExpectError(absl::StatusCode::kCancelled);
  group_.Release();
  Client next("2", 7);
  scheduler_->Submit(next.call());
  next.ExpectRightNumbers();
  EXPECT_TRUE(reasons().empty());
  EXPECT_THAT(group_.request_ids(), ElementsAre("1", "2"));
}

TEST_F(GroupSchedulerTest, ACallPastItsDeadlineReachesNoRank) {
  StartReady();
  Client client("late");
  client.call()->deadline = absl::Now() - absl::Seconds(1);
  scheduler_->Submit(client.call());
  client.ExpectError(absl::StatusCode::kDeadlineExceeded);
  Client next("next", 3);
  scheduler_->Submit(next.call());
  next.ExpectRightNumbers();
  EXPECT_THAT(group_.request_ids(), ElementsAre("next"));
}

TEST_F(GroupSchedulerTest, ALostGroupEndsItsCallsAndTheQueuedAtOnce) {
  StartReady();
  group_.Hold();
  Client running("1"), behind("2"), queued("3");
  for (Client* client : {&running, &behind, &queued}) {
    scheduler_->Submit(client->call());
  }
  group_.AwaitHeld(2);
  scheduler_->OnGroupLost("g1", 1, GroupFailureReason::kWorkerLost, "killed");
  for (Client* client : {&running, &behind, &queued}) {
    EXPECT_TRUE(client->ended());
    client->ExpectError(absl::StatusCode::kUnavailable);
    EXPECT_TRUE(RetryHint(client->Await().status()).has_value());
  }
  EXPECT_THAT(std::string(running.Await().status().message()),
              HasSubstr("killed"));
  EXPECT_FALSE(scheduler_->Ready());
  // The next generation serves again, and numbers from 1.
  scheduler_->OnGroupFormed(other_group_.Describe("g1", 2));
  AwaitTrue([this] { return scheduler_->Ready("g1", 2); });
  Client next("4", 5);
  scheduler_->Submit(next.call());
  next.ExpectRightNumbers();
  EXPECT_THAT(other_group_.call_numbers(), ElementsAre(1, 2));
}

TEST_F(GroupSchedulerTest, ARanksFailureEndsTheCallAndIsReported) {
  StartReady();
  group_.FailNext(1, {grpc::StatusCode::UNAVAILABLE, "peer is gone"});
  Client client("1");
  scheduler_->Submit(client.call());
  client.ExpectError(absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.Await().status().message()),
              HasSubstr("peer is gone"));
  AwaitTrue([this] { return !reasons().empty(); });
  EXPECT_THAT(reasons(), ElementsAre(GroupFailureReason::kCollectiveFailed));
  EXPECT_FALSE(scheduler_->Ready());
}

TEST_F(GroupSchedulerTest, ACallThatOutlastsItsLimitIsReportedAsStuck) {
  GroupScheduler::Options options;
  options.collective_timeout = absl::Milliseconds(100);
  StartReady(options);
  group_.Hold();
  Client client("1");
  scheduler_->Submit(client.call());
  client.ExpectError(absl::StatusCode::kUnavailable);
  AwaitTrue([this] { return !reasons().empty(); });
  EXPECT_THAT(reasons(), ElementsAre(GroupFailureReason::kCallTimeout));
}

TEST_F(GroupSchedulerTest, ACallOfALostGroupIsRetriedOnceOnAnother) {
  StartReady();
  group_.Hold();
  Client client("1", 9);
  scheduler_->Submit(client.call());
  group_.AwaitHeld(1);
  scheduler_->OnGroupFormed(other_group_.Describe("g2", 1));
  AwaitTrue([this] { return scheduler_->Ready("g2", 1); });
  other_group_.Hold();
  scheduler_->OnGroupLost("g1", 1, GroupFailureReason::kWorkerLost, "killed");
  other_group_.AwaitHeld(1);
  EXPECT_FALSE(client.ended());
  other_group_.Release();
  client.ExpectRightNumbers();
  EXPECT_EQ(client.Await()->report.group(), "g2");
  EXPECT_THAT(metrics_.Serialize(), HasSubstr("\nithaca_retries_total 1\n"));
}

TEST_F(GroupSchedulerTest, ASecondLossEndsARetriedCall) {
  StartReady();
  FakeGroup third_group(2);
  group_.Hold();
  Client client("1");
  scheduler_->Submit(client.call());
  group_.AwaitHeld(1);
  scheduler_->OnGroupFormed(other_group_.Describe("g2", 1));
  AwaitTrue([this] { return scheduler_->Ready("g2", 1); });
  other_group_.Hold();
  scheduler_->OnGroupLost("g1", 1, GroupFailureReason::kWorkerLost, "killed");
  other_group_.AwaitHeld(1);
  scheduler_->OnGroupFormed(third_group.Describe("g3", 1));
  AwaitTrue([this] { return scheduler_->Ready("g3", 1); });
  scheduler_->OnGroupLost("g2", 1, GroupFailureReason::kWorkerLost, "killed");
  client.ExpectError(absl::StatusCode::kUnavailable);
  scheduler_->Stop();
}

TEST_F(GroupSchedulerTest, ARefusalOfAllRanksReachesTheClientAndTheGroupStays) {
  StartReady();
  group_.RefuseNext({grpc::StatusCode::UNIMPLEMENTED, "no such kernel"});
  Client client("1");
  scheduler_->Submit(client.call());
  client.ExpectError(absl::StatusCode::kUnimplemented);
  EXPECT_EQ(client.Await().status().message(), "worker g1/0: no such kernel");
  Client next("2", 1);
  scheduler_->Submit(next.call());
  next.ExpectRightNumbers();
  EXPECT_TRUE(reasons().empty());
}

TEST_F(GroupSchedulerTest, AnIdleGroupIsProbedAgain) {
  GroupScheduler::Options options;
  options.probe_interval = absl::Milliseconds(10);
  StartReady(options);
  AwaitTrue([this] { return group_.call_numbers().size() >= 4; });
  EXPECT_TRUE(group_.request_ids().empty());
  EXPECT_EQ(marked_ready(), 1);
}

TEST_F(GroupSchedulerTest, ALateProbeTurnsReadinessOffAndItsAnswerOn) {
  GroupScheduler::Options options;
  options.probe_interval = absl::Milliseconds(10);
  options.probe_patience = absl::Milliseconds(100);
  absl::Mutex mutex;
  std::vector<bool> told;
  options.on_ready_changed = [&](bool ready) {
    const absl::MutexLock lock(&mutex);
    told.push_back(ready);
  };
  StartReady(options);
  const auto times_told = [&] {
    const absl::MutexLock lock(&mutex);
    return told.size();
  };
  group_.Hold();
  AwaitTrue([&] { return times_told() >= 2; });
  EXPECT_FALSE(scheduler_->Ready());
  group_.Release();
  AwaitTrue([&] { return times_told() >= 3; });
  EXPECT_TRUE(reasons().empty());
  scheduler_->Stop();
  const absl::MutexLock lock(&mutex);
  for (size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], i % 2 == 0);
}

TEST_F(GroupSchedulerTest, ABusyGroupStaysReady) {
  GroupScheduler::Options options;
  // Long enough that the call is there before the idle group is probed; not the
  // default, which StartScheduler takes for none.
  options.probe_interval = absl::Milliseconds(400);
  options.probe_patience = absl::Milliseconds(100);
  std::atomic<int> told{0};
  options.on_ready_changed = [&](bool) { ++told; };
  StartReady(options);
  group_.Hold();
  Client client("1", 4);
  scheduler_->Submit(client.call());
  group_.AwaitHeld(1);
  // A probe would queue behind the call, and be late for no fault of the group.
  absl::SleepFor(options.probe_interval + 3 * options.probe_patience);
  EXPECT_TRUE(scheduler_->Ready("g1", 1));
  EXPECT_EQ(told, 1);
  EXPECT_THAT(group_.call_numbers(), ElementsAre(1, 2));  // probe and call
  group_.Release();
  client.ExpectRightNumbers();
  EXPECT_THAT(reasons(), IsEmpty());
  scheduler_->Stop();
}

TEST_F(GroupSchedulerTest, DrainingRefusesNewCallsAndFinishesThoseTaken) {
  StartReady();
  group_.Hold();
  Client running("1", 1), second("2", 2), queued("3", 3);
  for (Client* client : {&running, &second, &queued}) {
    scheduler_->Submit(client->call());
  }
  group_.AwaitHeld(2);
  scheduler_->Drain();
  EXPECT_FALSE(scheduler_->Ready());
  Client late("4");
  scheduler_->Submit(late.call());
  late.ExpectError(absl::StatusCode::kUnavailable);
  group_.Release();
  running.ExpectRightNumbers();
  second.ExpectRightNumbers();
  queued.ExpectRightNumbers();
}

TEST_F(GroupSchedulerTest, ADrainingGroupFinishesItsCallsAndIsReleasedOnce) {
  absl::Notification released;
  EXPECT_CALL(manager_, Release(std::string_view("g1"), 1)).WillOnce([&] {
    released.Notify();
  });
  StartReady();
  group_.Hold();
  Client running("running");
  scheduler_->Submit(running.call());
  group_.AwaitHeld(1);
  scheduler_->OnGroupDraining("g1", 1);
  EXPECT_FALSE(scheduler_->Ready());
  EXPECT_FALSE(released.HasBeenNotified());
  Client late("late");
  scheduler_->Submit(late.call());
  late.ExpectError(absl::StatusCode::kUnavailable);
  group_.Release();
  running.ExpectRightNumbers();
  EXPECT_TRUE(released.WaitForNotificationWithTimeout(kPatience));
  EXPECT_THAT(reasons(), IsEmpty());
}

TEST_F(GroupSchedulerTest, AnIdleDrainingGroupIsReleasedAtOnceAndOthersServe) {
  EXPECT_CALL(manager_, Release(std::string_view("g1"), 1));
  StartReady();
  scheduler_->OnGroupFormed(other_group_.Describe("g2", 2));
  AwaitTrue([this] { return scheduler_->Ready("g2", 2); });
  scheduler_->OnGroupDraining("g1", 1);
  EXPECT_FALSE(scheduler_->Ready("g1", 1));
  EXPECT_TRUE(scheduler_->Ready());
  Client client("a");
  scheduler_->Submit(client.call());
  client.ExpectRightNumbers();
  EXPECT_EQ(client.Await()->report.group(), "g2");
}

TEST_F(GroupSchedulerTest, CallsGoToTheGroupWithTheLeastWork) {
  StartReady();
  scheduler_->OnGroupFormed(other_group_.Describe("g2", 1));
  AwaitTrue([this] { return scheduler_->Ready("g2", 1); });
  group_.Hold();
  other_group_.Hold();
  std::vector<std::unique_ptr<Client>> clients;
  clients.reserve(6);
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(std::to_string(i)));
    scheduler_->Submit(clients.back()->call());
  }
  group_.AwaitHeld(2);
  other_group_.AwaitHeld(2);
  EXPECT_THAT(group_.request_ids(), ElementsAre("0", "2"));
  EXPECT_THAT(other_group_.request_ids(), ElementsAre("1", "3"));
  group_.Release();
  other_group_.Release();
  for (auto& client : clients) client->ExpectRightNumbers();
}

TEST_F(GroupSchedulerTest, EveryCallEndsOnceWhileGroupsComeAndGo) {
  StartScheduler();
  std::atomic<bool> stop{false};
  std::atomic<int> right{0};
  std::vector<std::thread> clients;
  clients.reserve(3);
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back([&, i] {
      while (!stop) {
        Client client(std::to_string(i), static_cast<float>(i));
        scheduler_->Submit(client.call());
        const auto& outcome = client.Await();
        if (outcome.ok()) {
          client.ExpectRightNumbers();
          ++right;
        } else {
          EXPECT_EQ(outcome.status().code(), absl::StatusCode::kUnavailable);
        }
      }
    });
  }
  std::vector<std::unique_ptr<FakeGroup>> groups;
  groups.reserve(12);
  for (uint64_t generation = 1; generation <= 12; ++generation) {
    groups.push_back(std::make_unique<FakeGroup>(2));
    scheduler_->OnGroupFormed(groups.back()->Describe("g", generation));
    const int before = right;
    AwaitTrue([&] { return right >= before + 10; });
    scheduler_->OnGroupLost("g", generation, GroupFailureReason::kWorkerLost,
                            "killed");
  }
  stop = true;
  for (auto& client : clients) client.join();
  EXPECT_EQ(queue_.size(), 0);
  scheduler_->Stop();
}

TEST_F(GroupSchedulerTest, StoppingEndsEveryCall) {
  StartReady();
  group_.Hold();
  Client running("1"), second("2"), queued("3");
  for (Client* client : {&running, &second, &queued}) {
    scheduler_->Submit(client->call());
  }
  group_.AwaitHeld(2);
  scheduler_->Stop();
  for (Client* client : {&running, &second, &queued}) {
    client->ExpectError(absl::StatusCode::kUnavailable);
  }
}

}  // namespace
}  // namespace ithaca::server
