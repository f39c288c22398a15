#ifndef ITHACA_SERVER_MEMORY_TEST_SERVER_H_
#define ITHACA_SERVER_MEMORY_TEST_SERVER_H_

#include <gmock/gmock.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/bearer_token.h"
#include "server/attention_service.h"
#include "server/fake_group.h"
#include "server/grpc_arguments.h"
#include "server/memory_service.h"
#include "server/memory_test_client.h"
#include "server/mock_group_manager.h"

namespace ithaca::server {

// For tests: MemoryService with the rest of a server around it, and ranks that
// are fakes.
class MemoryServerTest : public ::testing::Test {
 protected:
  explicit MemoryServerTest(bool shared = true, bool cuda = true,
                            const BearerToken& token = BearerToken())
      : metrics_("test", "cpu"),
        queue_(16),
        budget_(1 << 20),
        attacher_(&manager_, {}),
        table_({},
               [this](const internal::v1::Region& memory,
                      std::function<void()> done) {
                 attacher_.Detach(memory, std::move(done));
               }),
        scheduler_(&manager_, &queue_, &metrics_, SchedulerOptions()),
        attention_(&manager_, &scheduler_, &budget_, &metrics_,
                   {"test", "cpu", 1 << 20, 1 << 20, token,
                    shared || cuda ? &table_ : nullptr, shared, cuda}),
        memory_(&table_, &attacher_, &metrics_, {shared, cuda, token}) {
    Group group = group_.Describe("g1", 1);
    group.state = GroupState::kReady;
    ON_CALL(manager_, Groups)
        .WillByDefault(::testing::Return(std::vector<Group>{group}));
    ON_CALL(manager_, JoinedWorkers)
        .WillByDefault(::testing::Return(group.members));
    grpc::ServerBuilder builder;
    SetServerArguments(1 << 20, &builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&attention_);
    builder.RegisterService(&memory_);
    server_ = builder.BuildAndStart();
    scheduler_.OnGroupFormed(group);
    AwaitTrue([this] { return scheduler_.Ready(); });
    client_ = std::make_unique<MemoryTestClient>(port_);
  }

  ~MemoryServerTest() override {
    group_.Release();
    group_.ReleaseRegions();
    client_.reset();
    memory_.EndLeases();
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::seconds(10));
    scheduler_.Stop();
    EXPECT_TRUE(table_.AwaitEmpty(absl::Now() + absl::Seconds(30)));
    attacher_.Stop();
  }

  static GroupScheduler::Options SchedulerOptions() {
    GroupScheduler::Options options;
    options.probe_interval = absl::Hours(1);
    return options;
  }

  static void AwaitTrue(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  double Counted(const std::string& series) {
    const auto totals = table_.totals();
    metrics_.SetLeases(totals.leases);
    const std::string page = "\n" + metrics_.Serialize();
    const size_t at = page.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return std::stod(page.substr(at + series.size() + 2));
  }

  void ExpectRefused(const grpc::Status& status, grpc::StatusCode code,
                     const std::string& part) {
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), ::testing::HasSubstr(part));
  }

  ::testing::NiceMock<MockGroupManager> manager_;
  FakeGroup group_{2};
  Metrics metrics_;
  AdmissionQueue queue_;
  ByteBudget budget_;
  RegionAttacher attacher_;
  RegionTable table_;
  GroupScheduler scheduler_;
  AttentionService attention_;
  MemoryService memory_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<MemoryTestClient> client_;
  TensorObject object_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMORY_TEST_SERVER_H_
