#include "worker/membership.h"

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/fake_rank_device.h"

namespace ithaca {
namespace {

using internal::v1::Join;
using internal::v1::WorkerCommand;
using internal::v1::WorkerEvent;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(60);

// A coordinator that does as the test says: one stream at a time.
class FakeCoordinator : public internal::v1::WorkerRegistry::Service {
 public:
  using Stream = grpc::ServerReaderWriter<WorkerCommand, WorkerEvent>;

  grpc::Status Membership(grpc::ServerContext* context,
                          Stream* stream) override {
    WorkerEvent event;
    if (!stream->Read(&event) || !event.has_join()) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no join");
    }
    {
      absl::MutexLock lock(&mutex_);
      joins_.push_back(event.join());
      for (const auto& [name, value] : context->client_metadata()) {
        if (name == "authorization")
          authorization_ = {value.data(), value.size()};
      }
      if (!refusal_.ok()) return refusal_;
    }
    WorkerCommand welcome;
    welcome.mutable_welcome()->set_heartbeat_interval_seconds(0.02);
    stream->Write(welcome);
    {
      absl::MutexLock lock(&mutex_);
      stream_ = stream;
    }
    while (stream->Read(&event)) {
      absl::MutexLock lock(&mutex_);  // Send writes under it too
      if (event.has_heartbeat()) {
        ++heartbeats_;
      } else {
        events_[event.event_case()].push_back(event);
      }
      if (hang_up_) break;
    }
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    hang_up_ = false;
    return grpc::Status::OK;
  }

  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }
  // Ends the stream at the next word of the worker.
  void HangUp() {
    absl::MutexLock lock(&mutex_);
    hang_up_ = true;
  }
  void Send(const WorkerCommand& command) {
    absl::MutexLock lock(&mutex_);
    auto open = [this] { return stream_ != nullptr; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&open), kDeadline));
    stream_->Write(command);
  }

  Join AwaitJoin(size_t index) {
    absl::MutexLock lock(&mutex_);
    auto there = [&] { return joins_.size() > index; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kDeadline)) {
      ADD_FAILURE() << "nobody joined";
      return {};
    }
    return joins_[index];
  }
  // The index-th event of its kind.
  WorkerEvent AwaitEvent(WorkerEvent::EventCase kind, size_t index = 0) {
    absl::MutexLock lock(&mutex_);
    auto there = [&] { return events_[kind].size() > index; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&there), kDeadline)) {
      ADD_FAILURE() << "nothing was said";
      return {};
    }
    return events_[kind][index];
  }
  std::string authorization() {
    absl::MutexLock lock(&mutex_);
    return authorization_;
  }
  bool AwaitHeartbeats(int count) {
    absl::MutexLock lock(&mutex_);
    auto there = [&] { return heartbeats_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kDeadline);
  }

 private:
  absl::Mutex mutex_;
  grpc::Status refusal_;
  bool hang_up_ = false;
  Stream* stream_ = nullptr;
  std::vector<Join> joins_;
  std::string authorization_;
  std::map<WorkerEvent::EventCase, std::vector<WorkerEvent>> events_;
  int heartbeats_ = 0;
};

class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest() {
    StartServer();
    MembershipOptions options;
    options.join.set_worker("box/1");
    options.authorization = "Bearer secret";
    options.session.buffers = &buffers_;
    options.session.open_device = [this] {
      return OpenFakeRankDevice(forms_ ? std::make_shared<InProcessGroup>(1)
                                       : nullptr)();
    };
    options.first_redial_delay = absl::Milliseconds(5);
    options.longest_redial_delay = absl::Milliseconds(50);
    MembershipEvents events;
    events.on_session = [this](std::shared_ptr<GroupSession> session) {
      absl::MutexLock lock(&mutex_);
      session_ = std::move(session);
    };
    events.on_coordinator_lost = [this] { ++coordinators_lost_; };
    events.on_refused = [this](const absl::Status& why) {
      refused_with_ = why;
      refused_.Notify();
    };
    events.on_shutdown = [this](const std::string& reason) {
      shutdown_reason_ = reason;
      shut_down_.Notify();
    };
    membership_ = std::make_unique<Membership>(
        MakeCoordinatorChannel("127.0.0.1:" + std::to_string(port_)),
        std::move(options), std::move(events));
  }
  ~MembershipTest() override {
    EXPECT_TRUE(membership_->Stop(kDeadline));
    server_->Shutdown();
  }

  void StartServer() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port_),
                             grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&coordinator_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  void Form(uint64_t generation) {
    WorkerCommand command;
    command.mutable_form_group()->set_group("g0");
    command.mutable_form_group()->set_generation(generation);
    command.mutable_form_group()->set_world_size(1);
    coordinator_.Send(command);
  }

  // Whether the session of this generation is served; 0: none.
  bool AwaitGeneration(uint64_t generation) {
    absl::MutexLock lock(&mutex_);
    auto there = [&] {
      return (session_ == nullptr ? 0 : session_->membership().generation) ==
             generation;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&there), kDeadline);
  }

  int port_ = 0;
  std::atomic<bool> forms_{true};
  HostBufferPool buffers_;
  FakeCoordinator coordinator_;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  std::shared_ptr<GroupSession> session_;
  std::atomic<int> coordinators_lost_{0};
  absl::Status refused_with_;
  absl::Notification refused_, shut_down_;
  std::string shutdown_reason_;
  std::unique_ptr<Membership> membership_;
};

TEST_F(MembershipTest, JoinsAndSaysThatItLives) {
  membership_->Start();
  EXPECT_EQ(coordinator_.AwaitJoin(0).worker(), "box/1");
  EXPECT_TRUE(coordinator_.AwaitHeartbeats(3));
}

TEST_F(MembershipTest, FormsAndLeavesAGroupAsTold) {
  membership_->Start();
  Form(7);
  const WorkerEvent event = coordinator_.AwaitEvent(WorkerEvent::kFormResult);
  EXPECT_EQ(event.form_result().group(), "g0");
  EXPECT_EQ(event.form_result().generation(), 7u);
  EXPECT_TRUE(event.form_result().formed());
  EXPECT_TRUE(AwaitGeneration(7));

  WorkerCommand leave;
  leave.mutable_leave_group()->set_group("g0");
  leave.mutable_leave_group()->set_generation(6);  // an earlier one: ignored
  coordinator_.Send(leave);
  leave.mutable_leave_group()->set_generation(7);
  coordinator_.Send(leave);
  EXPECT_TRUE(AwaitGeneration(0));
}

TEST_F(MembershipTest, TheNextGenerationReplacesTheLast) {
  membership_->Start();
  Form(7);
  EXPECT_TRUE(AwaitGeneration(7));
  coordinator_.AwaitEvent(WorkerEvent::kFormResult);
  Form(8);
  EXPECT_TRUE(AwaitGeneration(8));
  EXPECT_EQ(coordinator_.AwaitEvent(WorkerEvent::kFormResult, 1)
                .form_result()
                .generation(),
            8u);
}

TEST_F(MembershipTest, AGroupThatDoesNotFormIsReportedWithTheReason) {
  forms_ = false;
  membership_->Start();
  Form(7);
  const WorkerEvent event = coordinator_.AwaitEvent(WorkerEvent::kFormResult);
  EXPECT_FALSE(event.form_result().formed());
  EXPECT_THAT(event.form_result().error(), HasSubstr("nobody came"));
}

TEST_F(MembershipTest, ABrokenGroupIsReported) {
  membership_->Start();
  Form(7);
  ASSERT_TRUE(AwaitGeneration(7));
  RankCall call;  // a shape that no plan has
  call.number = 1;
  absl::Notification done;
  ASSERT_TRUE(session_
                  ->Submit(std::move(call),
                           [&](const absl::StatusOr<RankResult>& result) {
                             EXPECT_EQ(result.status().code(),
                                       absl::StatusCode::kInternal);
                             done.Notify();
                           })
                  .ok());
  done.WaitForNotification();
  const WorkerEvent event = coordinator_.AwaitEvent(WorkerEvent::kGroupFailure);
  EXPECT_EQ(event.group_failure().group(), "g0");
  EXPECT_EQ(event.group_failure().generation(), 7u);
}

TEST_F(MembershipTest, WhenTheStreamEndsItLeavesItsGroupAndJoinsAgain) {
  membership_->Start();
  Form(7);
  EXPECT_TRUE(AwaitGeneration(7));
  EXPECT_EQ(coordinators_lost_, 0);
  coordinator_.HangUp();
  coordinator_.AwaitJoin(1);
  EXPECT_TRUE(AwaitGeneration(0));
  EXPECT_EQ(coordinators_lost_, 1);
  Form(9);
  EXPECT_TRUE(AwaitGeneration(9));
}

TEST_F(MembershipTest, ACoordinatorThatRestartsIsFoundAgain) {
  membership_->Start();
  coordinator_.AwaitJoin(0);
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  StartServer();
  coordinator_.AwaitJoin(1);
  Form(5);
  EXPECT_TRUE(AwaitGeneration(5));
}

TEST_F(MembershipTest, ARefusalForGoodIsToldAndNotRepeated) {
  coordinator_.Refuse(
      grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another version"));
  membership_->Start();
  ASSERT_TRUE(refused_.WaitForNotificationWithTimeout(kDeadline));
  EXPECT_THAT(std::string(refused_with_.message()),
              HasSubstr("another version"));
}

TEST_F(MembershipTest, ARefusalForNowIsTriedAgain) {
  coordinator_.Refuse(
      grpc::Status(grpc::StatusCode::UNAVAILABLE, "shutting down"));
  membership_->Start();
  coordinator_.AwaitJoin(1);
  coordinator_.Refuse(grpc::Status::OK);
  EXPECT_TRUE(coordinator_.AwaitHeartbeats(1));
  EXPECT_FALSE(refused_.HasBeenNotified());
}

TEST_F(MembershipTest, TheTokenIsSent) {
  membership_->Start();
  coordinator_.AwaitJoin(0);
  EXPECT_EQ(coordinator_.authorization(), "Bearer secret");
}

TEST_F(MembershipTest, AGroupThatWasLeftIsReportedOnceNothingOfItRuns) {
  membership_->Start();
  Form(7);
  ASSERT_TRUE(AwaitGeneration(7));
  WorkerCommand leave;
  leave.mutable_leave_group()->set_generation(7);
  coordinator_.Send(leave);
  EXPECT_EQ(coordinator_.AwaitEvent(WorkerEvent::kLeftGroup)
                .left_group()
                .generation(),
            7u);
}

TEST_F(MembershipTest, LeavingWaitsForTheCoordinatorsWord) {
  membership_->Start();
  Form(7);
  ASSERT_TRUE(AwaitGeneration(7));
  absl::Notification left;
  std::thread leaver([&] {
    membership_->Leave(absl::Now() + kDeadline);
    left.Notify();
  });
  coordinator_.AwaitEvent(WorkerEvent::kLeaving);
  EXPECT_FALSE(left.HasBeenNotified());
  EXPECT_TRUE(AwaitGeneration(7));
  WorkerCommand command;
  command.mutable_shutdown()->set_reason("you are leaving");
  coordinator_.Send(command);
  EXPECT_TRUE(left.WaitForNotificationWithTimeout(kDeadline));
  leaver.join();
}

TEST_F(MembershipTest, LeavingNeedsNoCoordinator) {
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  membership_->Start();
  membership_->Leave(absl::InfiniteFuture());
}

TEST_F(MembershipTest, AShutdownIsPassedOn) {
  membership_->Start();
  WorkerCommand command;
  command.mutable_shutdown()->set_reason("bye");
  coordinator_.Send(command);
  ASSERT_TRUE(shut_down_.WaitForNotificationWithTimeout(kDeadline));
  EXPECT_EQ(shutdown_reason_, "bye");
}

TEST_F(MembershipTest, StopNeedsNoCoordinatorAndNoStart) {
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  EXPECT_TRUE(membership_->Stop());
}

}  // namespace
}  // namespace ithaca
