#include "server/local_worker_supervisor.h"

#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/worker_process.h"

namespace ithaca::server {
namespace {

using ::testing::HasSubstr;

// Bounded and generous: it ends as soon as the condition holds.
bool Eventually(const std::function<bool()>& condition) {
  const absl::Time limit = absl::Now() + absl::Seconds(30);
  while (!condition()) {
    if (absl::Now() > limit) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

// A file name of this test's own.
std::string Temporary(const std::string& name) {
  return absl::StrCat(
      ::testing::TempDir(), "/",
      ::testing::UnitTest::GetInstance()->current_test_info()->name(), ".",
      name);
}

// A stand-in for the worker: a shell script.
std::string Script(const std::string& body) {
  const std::string path = Temporary("worker.sh");
  std::ofstream(path) << "#!/bin/sh\n" << body;
  chmod(path.c_str(), 0755);
  return path;
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

LocalWorkerOptions Options(const std::string& binary, int workers) {
  LocalWorkerOptions options;
  options.workers = workers;
  options.coordinator_address = "127.0.0.1:1";
  options.worker_binary = binary;
  options.first_restart_delay = absl::Milliseconds(10);
  return options;
}

bool Running(const LocalWorkerSupervisor& supervisor, size_t slot) {
  return supervisor.Pids()[slot] != 0;
}

TEST(LocalWorkerSupervisorTest, AMissingBinaryIsNotFoundAndNamed) {
  LocalWorkerSupervisor supervisor(Options("/nonexistent/worker", 1));
  const absl::Status status = supervisor.Start();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/worker"));
}

TEST(LocalWorkerSupervisorTest, EachSlotIsToldWhoItIs) {
  const std::string out = Temporary("arguments");
  LocalWorkerOptions options = Options(
      Script(absl::StrCat("echo \"$@\" >> ", out, "\nexec sleep 600\n")), 2);
  options.worker_arguments = {"--log-format=json"};
  LocalWorkerSupervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start().ok());
  ASSERT_TRUE(Eventually([&] {
    const std::string text = Contents(out);
    return std::count(text.begin(), text.end(), '\n') == 2;
  }));
  const std::string text = Contents(out);
  EXPECT_THAT(text, HasSubstr("--local-slot=0"));
  EXPECT_THAT(text, HasSubstr("--local-slot=1"));
  EXPECT_THAT(text, HasSubstr("--coordinator=127.0.0.1:1 "));
  EXPECT_THAT(text, HasSubstr("--device=cpu"));
  EXPECT_THAT(text, HasSubstr("--log-format=json"));
  EXPECT_THAT(text, HasSubstr(absl::StrCat("--exit-with-parent=", getpid())));
}

TEST(LocalWorkerSupervisorTest, AWorkerThatExitsIsStartedAgain) {
  const std::string out = Temporary("starts");
  LocalWorkerSupervisor supervisor(
      Options(Script(absl::StrCat("echo x >> ", out, "\nexit 3\n")), 1));
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_TRUE(Eventually([&] { return Contents(out).size() >= 6; }));
}

TEST(LocalWorkerSupervisorTest, AWorkerThatCannotRunHereIsToldOfAndLeft) {
  for (const int code : {kUnusableExitCode, 127}) {
    const std::string out = Temporary(absl::StrCat("starts.", code));
    absl::Notification told;
    std::string why;
    LocalWorkerOptions options = Options(
        Script(absl::StrCat("echo x >> ", out, "\nexit ", code, "\n")), 1);
    options.on_unusable = [&](const std::string& reason) {
      why = reason;
      told.Notify();  // a second time would be fatal
    };
    LocalWorkerSupervisor supervisor(options);
    ASSERT_TRUE(supervisor.Start().ok());
    told.WaitForNotification();
    supervisor.Stop();
    EXPECT_THAT(
        why, HasSubstr(absl::StrCat("local worker 0 exited with code ", code)));
    EXPECT_EQ(Contents(out), "x\n");
  }
}

TEST(LocalWorkerSupervisorTest, OneThatOnceRanIsStartedAgainWhateverItsCode) {
  const std::string out = Temporary("starts");
  LocalWorkerOptions options =
      Options(Script(absl::StrCat("echo x >> ", out, "\n[ $(wc -l < ", out,
                                  ") -eq 1 ] && exit 3\nexit 2\n")),
              1);
  options.on_unusable = [](const std::string& why) { ADD_FAILURE() << why; };
  LocalWorkerSupervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start().ok());
  EXPECT_TRUE(Eventually([&] { return Contents(out).size() >= 6; }));
}

TEST(LocalWorkerSupervisorTest, NoneIsStartedAgainOnceRestartingHasStopped) {
  LocalWorkerOptions options = Options(Script("exec sleep 600\n"), 1);
  LocalWorkerSupervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start().ok());
  supervisor.StopRestarting();
  kill(supervisor.Pids()[0], SIGTERM);
  EXPECT_TRUE(Eventually([&] { return !Running(supervisor, 0); }));
  supervisor.KillSlot(0);  // wakes it
  absl::SleepFor(5 * options.first_restart_delay);
  EXPECT_FALSE(Running(supervisor, 0));
}

TEST(LocalWorkerSupervisorTest, AKilledSlotGetsANewProcessEvenIfFrozen) {
  LocalWorkerSupervisor supervisor(Options(Script("exec sleep 600\n"), 2));
  ASSERT_TRUE(supervisor.Start().ok());
  const std::vector<pid_t> before = supervisor.Pids();
  ASSERT_EQ(kill(before[1], SIGSTOP), 0);
  supervisor.KillSlot(1);
  EXPECT_TRUE(Eventually([&] {
    const pid_t now = supervisor.Pids()[1];
    return now != 0 && now != before[1];
  }));
  EXPECT_EQ(supervisor.Pids()[0], before[0]);
  EXPECT_NE(kill(before[1], 0), 0);
}

TEST(LocalWorkerSupervisorTest, KillingASlotThatIsNotThereIsNothing) {
  LocalWorkerSupervisor supervisor(Options(Script("exec sleep 600\n"), 1));
  ASSERT_TRUE(supervisor.Start().ok());
  supervisor.KillSlot(-1);
  supervisor.KillSlot(7);
  supervisor.Stop();
}

TEST(LocalWorkerSupervisorTest, StopEndsAllAndStartsNoneAgain) {
  LocalWorkerSupervisor supervisor(Options(Script("exec sleep 600\n"), 3));
  ASSERT_TRUE(supervisor.Start().ok());
  const std::vector<pid_t> pids = supervisor.Pids();
  supervisor.Stop();
  for (size_t slot = 0; slot < pids.size(); ++slot) {
    EXPECT_NE(kill(pids[slot], 0), 0);
    EXPECT_FALSE(Running(supervisor, slot));
  }
  supervisor.Stop();
}

TEST(LocalWorkerSupervisorTest, OneThatIgnoresSigtermIsKilled) {
  const std::string ready = Temporary("ready");
  LocalWorkerOptions options =
      Options(Script(absl::StrCat("trap '' TERM\necho x > ", ready,
                                  "\nwhile true; do sleep 0.05; done\n")),
              1);
  options.stop_timeout = absl::Milliseconds(100);
  LocalWorkerSupervisor supervisor(options);
  ASSERT_TRUE(supervisor.Start().ok());
  ASSERT_TRUE(Eventually([&] { return !Contents(ready).empty(); }));
  const pid_t pid = supervisor.Pids()[0];
  supervisor.Stop();
  EXPECT_NE(kill(pid, 0), 0);
}

}  // namespace
}  // namespace ithaca::server
