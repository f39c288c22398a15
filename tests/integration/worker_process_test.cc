// ithaca-worker as a process: how it starts, ends, and says what is wrong.

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/bearer_token.h"
#include "core/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/group_manager_impl.h"
#include "tests/integration/rank_calls.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {
namespace {

using server::Group;
using server::GroupManagerImpl;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time limit = absl::Now() + absl::Seconds(60);
  while (!condition()) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

class WorkerProcess {
 public:
  explicit WorkerProcess(std::vector<std::string> arguments)
      : stderr_path_(absl::StrCat(::testing::TempDir(), "/worker.", ++count_,
                                  ".stderr")) {
    arguments.insert(arguments.begin(), "worker/ithaca-worker");
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO,
                                     stderr_path_.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0644);
    EXPECT_EQ(
        posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ),
        0);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~WorkerProcess() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  void Signal(int signal) { kill(pid_, signal); }

  // The exit code; -1 if it did not exit by itself.
  int Wait() {
    int status = 0;
    if (!Eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; })) {
      return -1;
    }
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string Stderr() const {
    std::ifstream file(stderr_path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

  bool AwaitStderr(const std::string& text) {
    return Eventually([&] { return Stderr().find(text) != std::string::npos; });
  }

 private:
  static int count_;
  const std::string stderr_path_;
  pid_t pid_ = 0;
};

int WorkerProcess::count_ = 0;

class FormedGroup : public server::GroupObserver {
 public:
  void OnGroupFormed(const Group& formed) override {
    if (told.HasBeenNotified()) return;
    group = formed;
    told.Notify();
  }
  void OnGroupDraining(std::string_view, uint64_t) override {
    draining.Notify();
  }
  void OnGroupLost(std::string_view, uint64_t, server::GroupFailureReason,
                   std::string_view) override {}

  Group group;
  absl::Notification told, draining;
};

// The control plane of a coordinator of this version.
struct Coordinator {
  explicit Coordinator(const std::string& version,
                       BearerToken token = BearerToken()) {
    server::GroupManagerOptions options;
    options.token = std::move(token);
    options.version = version;
    options.heartbeat_limit = absl::Seconds(30);
    manager = std::make_unique<GroupManagerImpl>(options);
    manager->SetObserver(&observer);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    manager->AddTo(&builder);
    server = builder.BuildAndStart();
    flag = absl::StrCat("--coordinator=127.0.0.1:", port);
  }
  ~Coordinator() {
    manager->Stop();
    server->Shutdown();
  }

  FormedGroup observer;
  std::unique_ptr<GroupManagerImpl> manager;
  std::unique_ptr<grpc::Server> server;
  std::string flag;
};

TEST(WorkerProcessTest, AWrongFlagIsOneLineAndCodeTwo) {
  WorkerProcess worker({"--coordinator=127.0.0.1:1", "--threads=some"});
  EXPECT_EQ(worker.Wait(), 2);
  EXPECT_THAT(worker.Stderr(), StartsWith("ithaca-worker: --threads"));
}

TEST(WorkerProcessTest, WhatThisHostDoesNotHaveIsOneLineAndCodeTwo) {
  for (const char* flag : {"--device=tpu", "--warm-shapes=/no/such/file"}) {
    WorkerProcess worker({"--coordinator=127.0.0.1:1", flag});
    EXPECT_EQ(worker.Wait(), 2);
    EXPECT_THAT(worker.Stderr(), StartsWith("ithaca-worker: "));
    EXPECT_THAT(
        worker.Stderr(),
        HasSubstr(std::string(flag).substr(std::string(flag).find('=') + 1)));
  }
}

TEST(WorkerProcessTest, ATokenFileIsReadAndStrangersAreRefused) {
  const std::string path = ::testing::TempDir() + "/token";
  std::ofstream(path) << "secret\n";
  const std::string flag = "--auth-token-file=" + path;
  Coordinator coordinator(std::string(Version()), BearerToken("secret"));
  {
    WorkerProcess stranger({coordinator.flag});
    EXPECT_EQ(stranger.Wait(), 1);
    EXPECT_THAT(stranger.Stderr(), HasSubstr("asks for a token"));
  }
  WorkerProcess worker({coordinator.flag, flag});
  ASSERT_TRUE(coordinator.observer.told.WaitForNotificationWithTimeout(
      absl::Seconds(60)));
  const Group& group = coordinator.observer.group;
  AttentionShape shape;
  shape.image_tokens = 4;
  shape.valid_text_tokens = {0};
  const SequenceParallelPlan plan = *MakeSequenceParallelPlan(shape, {}, 1);
  // Whoever calls the rank without the token.
  const testing::CallResult result = testing::CallRanks(
      {group.members[0].address},
      {testing::MakeRankRequest(plan, group.generation, 1,
                                oracle::RandomInputs(shape, 1), 0)});
  EXPECT_EQ(result.statuses[0].error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST(WorkerProcessTest, AnAddressThatIsTakenIsCodeOne) {
  Coordinator coordinator{std::string(Version())};
  const std::string taken =
      coordinator.flag.substr(coordinator.flag.find('=') + 1);
  WorkerProcess worker({coordinator.flag, "--listen=" + taken});
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.Stderr(), HasSubstr("cannot listen on " + taken));
}

TEST(WorkerProcessTest, AnotherVersionsCoordinatorEndsIt) {
  Coordinator coordinator("0.0.0-other");
  WorkerProcess worker({coordinator.flag});
  EXPECT_EQ(worker.Wait(), 1);
  EXPECT_THAT(worker.Stderr(), HasSubstr("0.0.0-other"));
  EXPECT_THAT(worker.Stderr(), HasSubstr(std::string(Version())));
}

TEST(WorkerProcessTest, SigtermEndsOneThatWaitsForACoordinator) {
  WorkerProcess worker({"--coordinator=127.0.0.1:1"});
  ASSERT_TRUE(worker.AwaitStderr("calls on port"));
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(), 0);
}

TEST(WorkerProcessTest, SigtermLetsTheRunningCallFinish) {
  Coordinator coordinator{std::string(Version())};
  WorkerProcess worker(
      {coordinator.flag, "--inject-delay-before-exchange-ms=500"});
  ASSERT_TRUE(coordinator.observer.told.WaitForNotificationWithTimeout(
      absl::Seconds(60)));
  const Group& group = coordinator.observer.group;
  AttentionShape shape;
  shape.image_tokens = 4;
  shape.valid_text_tokens = {0};
  const SequenceParallelPlan plan = *MakeSequenceParallelPlan(shape, {}, 1);
  testing::CallResult result;
  std::thread caller([&] {
    result = testing::CallRanks(
        {group.members[0].address},
        {testing::MakeRankRequest(plan, group.generation, 1,
                                  oracle::RandomInputs(shape, 1), 0)});
  });
  absl::SleepFor(absl::Milliseconds(150));
  worker.Signal(SIGTERM);
  ASSERT_TRUE(coordinator.observer.draining.WaitForNotificationWithTimeout(
      absl::Seconds(60)));
  caller.join();
  EXPECT_TRUE(result.statuses[0].ok()) << result.statuses[0].error_message();
  coordinator.manager->Release(group.name, group.generation);
  EXPECT_EQ(worker.Wait(), 0);
}

TEST(WorkerProcessTest, ASecondSigtermEndsItAtOnce) {
  Coordinator coordinator{std::string(Version())};
  WorkerProcess worker(
      {coordinator.flag, "--inject-delay-before-exchange-ms=600000"});
  ASSERT_TRUE(coordinator.observer.told.WaitForNotificationWithTimeout(
      absl::Seconds(60)));
  const Group& group = coordinator.observer.group;
  AttentionShape shape;
  shape.image_tokens = 4;
  shape.valid_text_tokens = {0};
  const SequenceParallelPlan plan = *MakeSequenceParallelPlan(shape, {}, 1);
  std::thread caller([&] {
    testing::CallRanks(
        {group.members[0].address},
        {testing::MakeRankRequest(plan, group.generation, 1,
                                  oracle::RandomInputs(shape, 1), 0)});
  });
  absl::SleepFor(absl::Milliseconds(150));
  worker.Signal(SIGTERM);
  EXPECT_TRUE(worker.AwaitStderr("ending: signal 15"));
  worker.Signal(SIGTERM);
  EXPECT_EQ(worker.Wait(), 128 + SIGTERM);
  caller.join();
}

TEST(WorkerProcessTest, JsonLogsAndMetricsAsAsked) {
  WorkerProcess worker({"--coordinator=127.0.0.1:1", "--log-format=json",
                        "--metrics-listen=127.0.0.1:0"});
  ASSERT_TRUE(worker.AwaitStderr("calls on port"));
  EXPECT_THAT(worker.Stderr(), StartsWith("{\"time\":"));
  EXPECT_THAT(worker.Stderr(), HasSubstr("metrics on port "));
  worker.Signal(SIGINT);
  EXPECT_EQ(worker.Wait(), 0);
}

}  // namespace
}  // namespace ithaca
