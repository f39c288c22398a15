#include "server/group_manager_impl.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"

namespace ithaca::server {
namespace {

using internal::v1::WorkerCommand;
using internal::v1::WorkerEvent;
using internal::v1::WorkerRegistry;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Seconds(30);

std::chrono::system_clock::time_point InSeconds(int seconds) {
  return std::chrono::system_clock::now() + std::chrono::seconds(seconds);
}

class RecordingObserver : public GroupObserver {
 public:
  void OnGroupFormed(const Group& group) override {
    // An observer may call back: a lock held here would hang the test.
    if (manager != nullptr) manager->MarkReady(group.name, group.generation);
    absl::MutexLock lock(&mutex_);
    formed_.push_back(group);
  }
  void OnGroupDraining(std::string_view name, uint64_t generation) override {
    manager->Release(name, generation);
  }
  void OnGroupLost(std::string_view, uint64_t generation,
                   GroupFailureReason reason, std::string_view) override {
    absl::MutexLock lock(&mutex_);
    lost_.push_back(generation);
    reasons_.push_back(reason);
  }

  bool AwaitFormed(size_t count) { return Await(&formed_, count); }
  bool AwaitLost(size_t count) { return Await(&lost_, count); }
  Group formed(size_t index) {
    absl::MutexLock lock(&mutex_);
    return formed_.at(index);
  }
  uint64_t lost(size_t index) {
    absl::MutexLock lock(&mutex_);
    return lost_.at(index);
  }
  size_t lost_count() {
    absl::MutexLock lock(&mutex_);
    return lost_.size();
  }
  GroupFailureReason reason(size_t index) {
    absl::MutexLock lock(&mutex_);
    return reasons_.at(index);
  }

  GroupManager* manager = nullptr;

 private:
  template <typename T>
  bool Await(std::vector<T>* events, size_t count) {
    absl::MutexLock lock(&mutex_);
    auto enough = [&] { return events->size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&enough), kDeadline);
  }

  absl::Mutex mutex_;
  std::vector<Group> formed_;
  std::vector<uint64_t> lost_;
  std::vector<GroupFailureReason> reasons_;
};

// A worker that speaks the protocol and forms whatever it is told to.
class FakeWorker {
 public:
  FakeWorker(const std::string& target, const std::string& name,
             const std::string& version = "1",
             const std::string& authorization = "")
      : stub_(WorkerRegistry::NewStub(
            grpc::CreateChannel(target, grpc::InsecureChannelCredentials()))) {
    context_.set_deadline(InSeconds(60));
    if (!authorization.empty()) {
      context_.AddMetadata("authorization", authorization);
    }
    stream_ = stub_->Membership(&context_);
    WorkerEvent event;
    event.mutable_join()->set_version(version);
    event.mutable_join()->set_worker(name);
    event.mutable_join()->set_host("box");
    event.mutable_join()->set_address(":7777");
    event.mutable_join()->set_device("cpu");
    stream_->Write(event);
  }
  ~FakeWorker() { Leave(); }

  bool Read() { return stream_->Read(&command_); }
  const WorkerCommand& command() const { return command_; }

  // Reads up to the next FormGroup and answers it.
  bool Form() {
    do {
      if (!Read()) return false;
    } while (!command_.has_form_group());
    WorkerEvent event;
    event.mutable_form_result()->set_group(command_.form_group().group());
    event.mutable_form_result()->set_generation(
        command_.form_group().generation());
    event.mutable_form_result()->set_formed(true);
    return stream_->Write(event);
  }

  bool Heartbeat() {
    WorkerEvent event;
    event.mutable_heartbeat();
    return stream_->Write(event);
  }

  bool SayLeaving() {
    WorkerEvent event;
    event.mutable_leaving();
    return stream_->Write(event);
  }

  void Leave() { context_.TryCancel(); }

  grpc::Status End() {
    while (Read()) {
    }
    return stream_->Finish();
  }

  WorkerRegistry::Stub* stub() { return stub_.get(); }

 private:
  std::unique_ptr<WorkerRegistry::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<WorkerEvent, WorkerCommand>> stream_;
  WorkerCommand command_;
};

class GroupManagerImplTest : public ::testing::Test {
 protected:
  void Start(int group_size, absl::Duration heartbeat_limit = absl::Seconds(60),
             BearerToken token = BearerToken()) {
    GroupManagerOptions options;
    options.token = std::move(token);
    options.group_size = group_size;
    options.version = "1";
    options.heartbeat_limit = heartbeat_limit;
    options.kill_local_slot = [](int) {};
    manager_ = std::make_unique<GroupManagerImpl>(options);
    observer_.manager = manager_.get();
    manager_->SetObserver(&observer_);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    manager_->AddTo(&builder);
    server_ = builder.BuildAndStart();
    target_ = "127.0.0.1:" + std::to_string(port);
  }

  void TearDown() override {
    if (manager_ != nullptr) manager_->Stop();
    // Without a deadline: it hangs if Stop left a stream open.
    if (server_ != nullptr) server_->Shutdown();
    server_.reset();
    manager_.reset();
  }

  RecordingObserver observer_;
  std::unique_ptr<GroupManagerImpl> manager_;
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

TEST_F(GroupManagerImplTest, WithATokenWorkersWithoutItAreRefused) {
  Start(1, absl::Seconds(60), BearerToken("secret"));
  for (const char* sent : {"", "Bearer other"}) {
    FakeWorker stranger(target_, "box/1", "1", sent);
    EXPECT_EQ(stranger.End().error_code(), grpc::StatusCode::UNAUTHENTICATED);
    grpc::ClientContext set, get;
    internal::v1::StoreSetResponse set_response;
    internal::v1::StoreGetResponse get_response;
    if (*sent != '\0') {
      set.AddMetadata("authorization", sent);
      get.AddMetadata("authorization", sent);
    }
    EXPECT_EQ(stranger.stub()->StoreSet(&set, {}, &set_response).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
    EXPECT_EQ(stranger.stub()->StoreGet(&get, {}, &get_response).error_code(),
              grpc::StatusCode::UNAUTHENTICATED);
  }
  FakeWorker worker(target_, "box/1", "1", "Bearer secret");
  ASSERT_TRUE(worker.Form());
  ASSERT_TRUE(observer_.AwaitFormed(1));
  EXPECT_EQ(observer_.formed(0).members[0].authorization, "Bearer secret");
}

TEST_F(GroupManagerImplTest, AWorkerThatLeavesIsDismissedAndNothingIsLost) {
  Start(2);
  FakeWorker a(target_, "box/1"), b(target_, "box/2");
  ASSERT_TRUE(a.Form());
  ASSERT_TRUE(b.Form());
  ASSERT_TRUE(observer_.AwaitFormed(1));
  FakeWorker spare(target_, "box/3");
  ASSERT_TRUE(b.SayLeaving());
  do {
    ASSERT_TRUE(b.Read());
  } while (!b.command().has_shutdown());
  ASSERT_TRUE(a.Form());
  ASSERT_TRUE(spare.Form());
  ASSERT_TRUE(observer_.AwaitFormed(2));
  EXPECT_EQ(observer_.lost_count(), 0u);
}

TEST_F(GroupManagerImplTest, AGroupFormsIsReadyAndKnowsItsAddresses) {
  Start(2);
  FakeWorker a(target_, "box/1"), b(target_, "box/2");
  ASSERT_TRUE(a.Read());
  EXPECT_TRUE(a.command().has_welcome());
  ASSERT_TRUE(a.Form());
  ASSERT_TRUE(b.Form());
  ASSERT_TRUE(observer_.AwaitFormed(1));
  const Group group = observer_.formed(0);
  ASSERT_EQ(group.members.size(), 2u);
  EXPECT_EQ(group.members[0].address, "127.0.0.1:7777");
  ASSERT_EQ(manager_->Groups().size(), 1u);
  EXPECT_EQ(manager_->Groups()[0].state, GroupState::kReady);
  EXPECT_EQ(manager_->Workers().in_group, 2);
}

TEST_F(GroupManagerImplTest, AWorkerThatVanishesEndsItsGroupAtOnce) {
  Start(2);
  FakeWorker a(target_, "box/1"), b(target_, "box/2");
  ASSERT_TRUE(a.Form());
  ASSERT_TRUE(b.Form());
  ASSERT_TRUE(observer_.AwaitFormed(1));
  b.Leave();
  ASSERT_TRUE(observer_.AwaitLost(1));
  EXPECT_EQ(observer_.lost(0), observer_.formed(0).generation);
  EXPECT_EQ(observer_.reason(0), GroupFailureReason::kWorkerLost);
  ASSERT_TRUE(a.Read());
  EXPECT_TRUE(a.command().has_leave_group());
  FakeWorker c(target_, "box/3");
  ASSERT_TRUE(a.Form());
  ASSERT_TRUE(c.Form());
  ASSERT_TRUE(observer_.AwaitFormed(2));
  EXPECT_GT(observer_.formed(1).generation, observer_.formed(0).generation);
}

TEST_F(GroupManagerImplTest, AWorkerThatFallsSilentIsTakenForDead) {
  Start(1, absl::Milliseconds(300));
  FakeWorker a(target_, "box/1");
  ASSERT_TRUE(a.Form());
  ASSERT_TRUE(observer_.AwaitFormed(1));
  ASSERT_TRUE(observer_.AwaitLost(1));
  EXPECT_FALSE(a.End().ok());
}

TEST_F(GroupManagerImplTest, HeartbeatsKeepAWorkerAlive) {
  Start(1, absl::Seconds(2));
  FakeWorker a(target_, "box/1");
  ASSERT_TRUE(a.Form());
  ASSERT_TRUE(observer_.AwaitFormed(1));
  for (int i = 0; i < 30; ++i) {
    ASSERT_TRUE(a.Heartbeat());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(observer_.lost_count(), 0u);
}

TEST_F(GroupManagerImplTest, AnotherVersionIsRefusedAndTheNextIsWelcome) {
  Start(1);
  FakeWorker old(target_, "box/1", "0");
  const grpc::Status status = old.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("'0'"));
  FakeWorker good(target_, "box/2");
  EXPECT_TRUE(good.Form());
}

TEST_F(GroupManagerImplTest, AStreamThatDoesNotBeginWithJoinIsRefused) {
  Start(1);
  auto stub = WorkerRegistry::NewStub(
      grpc::CreateChannel(target_, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(InSeconds(30));
  auto stream = stub->Membership(&context);
  WorkerEvent event;
  event.mutable_heartbeat();
  stream->Write(event);
  WorkerCommand command;
  EXPECT_FALSE(stream->Read(&command));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GroupManagerImplTest, MembersMeetInTheRendezvousStore) {
  Start(2);
  FakeWorker a(target_, "box/1"), b(target_, "box/2");
  do {
    ASSERT_TRUE(a.Read());
  } while (!a.command().has_form_group());
  const std::string id = a.command().form_group().rendezvous_id();

  internal::v1::StoreGetResponse got;
  grpc::Status get_status;
  std::thread getter([&] {
    grpc::ClientContext context;
    context.set_deadline(InSeconds(30));
    internal::v1::StoreGetRequest request;
    request.set_rendezvous_id(id);
    request.set_key("rank0");
    get_status = b.stub()->StoreGet(&context, request, &got);
  });
  {
    grpc::ClientContext context;
    internal::v1::StoreSetRequest request;
    internal::v1::StoreSetResponse response;
    request.set_rendezvous_id(id);
    request.set_key("rank0");
    request.set_value("address");
    EXPECT_TRUE(a.stub()->StoreSet(&context, request, &response).ok());
  }
  getter.join();
  EXPECT_TRUE(get_status.ok()) << get_status.error_message();
  EXPECT_EQ(got.value(), "address");
}

TEST_F(GroupManagerImplTest, WhoWaitsInTheStoreIsFreedByDeadlineAndByTheEnd) {
  Start(2);
  FakeWorker a(target_, "box/1"), b(target_, "box/2");
  do {
    ASSERT_TRUE(a.Read());
  } while (!a.command().has_form_group());
  internal::v1::StoreGetRequest request;
  request.set_rendezvous_id(a.command().form_group().rendezvous_id());
  request.set_key("never");
  internal::v1::StoreGetResponse response;
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(100));
    EXPECT_EQ(a.stub()->StoreGet(&context, request, &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  grpc::Status status;
  std::thread getter([&] {
    grpc::ClientContext context;
    context.set_deadline(InSeconds(30));
    status = a.stub()->StoreGet(&context, request, &response);
  });
  b.Leave();
  getter.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(GroupManagerImplTest, StopEndsEveryStreamAndRefusesNewOnes) {
  Start(2);
  FakeWorker a(target_, "box/1");
  ASSERT_TRUE(a.Read());
  std::thread reader(
      [&] { EXPECT_EQ(a.End().error_code(), grpc::StatusCode::UNAVAILABLE); });
  manager_->Stop();
  reader.join();
  FakeWorker late(target_, "box/2");
  EXPECT_EQ(late.End().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(GroupManagerGenerationTest, GenerationsRiseOverRestarts) {
  uint64_t previous = 0;
  for (int restart = 0; restart < 2; ++restart) {
    GroupManagerOptions options;
    options.version = "1";
    GroupManagerImpl manager(options);
    RecordingObserver observer;
    manager.SetObserver(&observer);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    manager.AddTo(&builder);
    auto server = builder.BuildAndStart();
    {
      FakeWorker worker("127.0.0.1:" + std::to_string(port), "box/1");
      ASSERT_TRUE(worker.Form());
      ASSERT_TRUE(observer.AwaitFormed(1));
      EXPECT_GT(observer.formed(0).generation, previous);
      previous = observer.formed(0).generation;
    }
    manager.Stop();
    server->Shutdown();
  }
}

}  // namespace
}  // namespace ithaca::server
