#include "worker/worker_flags.h"

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

std::variant<WorkerFlags, WorkerExit> Parse(std::vector<const char*> argv) {
  argv.insert(argv.begin(), "ithaca-worker");
  return ParseWorkerFlags(static_cast<int>(argv.size()), argv.data());
}

WorkerFlags Flags(const std::vector<const char*>& argv) {
  auto parsed = Parse(argv);
  if (const auto* exit = std::get_if<WorkerExit>(&parsed)) {
    ADD_FAILURE() << exit->text;
    return {};
  }
  return std::get<WorkerFlags>(parsed);
}

WorkerExit Exit(const std::vector<const char*>& argv) {
  auto parsed = Parse(argv);
  if (std::holds_alternative<WorkerFlags>(parsed)) {
    ADD_FAILURE() << "accepted";
    return {};
  }
  return std::get<WorkerExit>(parsed);
}

TEST(WorkerFlagsTest, OnlyTheCoordinatorIsNeeded) {
  const WorkerFlags flags = Flags({"--coordinator=host:1"});
  EXPECT_EQ(flags.coordinator, "host:1");
  EXPECT_EQ(flags.device, "cpu");
  EXPECT_EQ(flags.listen, "0.0.0.0:0");
  EXPECT_EQ(flags.metrics_listen, "");
  EXPECT_FALSE(flags.local_slot.has_value());
  EXPECT_FALSE(flags.exit_with_parent.has_value());
  EXPECT_EQ(flags.log_format, LogFormat::kText);
  EXPECT_EQ(flags.injected_vote_delay, absl::ZeroDuration());
}

TEST(WorkerFlagsTest, EveryFlagIsRead) {
  const WorkerFlags flags = Flags(
      {"--coordinator=host:1", "--device=cuda:3", "--listen=[::1]:5",
       "--metrics-listen=:9401", "--threads=7", "--peer-address=10.0.0.1",
       "--local-slot=0", "--exit-with-parent=42", "--drain-timeout-seconds=1.5",
       "--log-format=json", "--log-level=debug",
       "--inject-delay-before-exchange-ms=20", "--warm-shapes=/etc/shapes",
       "--nccl-host-id=a", "--auth-token-file=/etc/token"});
  EXPECT_EQ(flags.auth_token_file, "/etc/token");
  EXPECT_EQ(flags.warm_shapes, "/etc/shapes");
  EXPECT_EQ(flags.nccl_host_id, "a");
  EXPECT_EQ(flags.device, "cuda:3");
  EXPECT_EQ(flags.listen, "[::1]:5");
  EXPECT_EQ(flags.metrics_listen, ":9401");
  EXPECT_EQ(flags.threads, 7);
  EXPECT_EQ(flags.peer_address, "10.0.0.1");
  EXPECT_EQ(flags.local_slot, 0);
  EXPECT_EQ(flags.exit_with_parent, 42);
  EXPECT_EQ(flags.drain_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(flags.log_format, LogFormat::kJson);
  EXPECT_EQ(flags.log_level, "debug");
  EXPECT_EQ(flags.injected_vote_delay, absl::Milliseconds(20));
}

TEST(WorkerFlagsTest, TheLastOfAFlagCounts) {
  EXPECT_EQ(Flags({"--coordinator=a:1", "--coordinator=b:1"}).coordinator,
            "b:1");
}

TEST(WorkerFlagsTest, TheEnvironmentIsReadAndTheCommandLineWins) {
  setenv("ITHACA_WORKER_COORDINATOR", "environment:1", 1);
  setenv("ITHACA_WORKER_LOG_FORMAT", "json", 1);
  EXPECT_EQ(Flags({}).coordinator, "environment:1");
  EXPECT_EQ(Flags({}).log_format, LogFormat::kJson);
  EXPECT_EQ(Flags({"--coordinator=line:1"}).coordinator, "line:1");
  unsetenv("ITHACA_WORKER_COORDINATOR");
  unsetenv("ITHACA_WORKER_LOG_FORMAT");
}

TEST(WorkerFlagsTest, TheEnvironmentWinsOverTheFile) {
  const std::string path = ::testing::TempDir() + "/below.toml";
  std::ofstream(path) << "coordinator=\"file:1\"\nthreads=3\n";
  const std::string flag = "--config=" + path;
  setenv("ITHACA_WORKER_THREADS", "4", 1);
  setenv("ITHACA_WORKER_COORDINATOR", "", 1);
  const WorkerFlags flags = Flags({flag.c_str()});
  const WorkerFlags line = Flags({flag.c_str(), "--threads=5"});
  unsetenv("ITHACA_WORKER_THREADS");
  unsetenv("ITHACA_WORKER_COORDINATOR");
  EXPECT_EQ(flags.threads, 4);
  EXPECT_EQ(flags.coordinator, "file:1");  // an empty variable says nothing
  EXPECT_EQ(line.threads, 5);
}

TEST(WorkerFlagsTest, AConfigFileIsReadAndChecked) {
  const std::string path = ::testing::TempDir() + "/worker.toml";
  std::ofstream(path) << "coordinator=\"file:1\"\nthreads=3\n";
  const std::string flag = "--config=" + path;
  EXPECT_EQ(Flags({flag.c_str()}).coordinator, "file:1");
  EXPECT_EQ(Flags({flag.c_str(), "--threads=5"}).threads, 5);
  EXPECT_EQ(Flags({flag.c_str(), "--log-level=off"}).log_level, "off");
  std::ofstream(path) << "coordinator=\"file:1\"\nthread=3\n";
  EXPECT_EQ(Exit({flag.c_str()}).code, 2);
}

TEST(WorkerFlagsTest, TheEnvironmentMayNameTheConfigFile) {
  const std::string path = ::testing::TempDir() + "/named.toml";
  std::ofstream(path) << "coordinator=\"file:1\"\n";
  setenv("ITHACA_WORKER_CONFIG", path.c_str(), 1);
  EXPECT_EQ(Flags({}).coordinator, "file:1");
  EXPECT_EQ(Flags({"--coordinator=line:1"}).coordinator, "line:1");
  setenv("ITHACA_WORKER_CONFIG", "/no/such/file", 1);
  EXPECT_EQ(Exit({"--coordinator=line:1"}).code, 2);
  unsetenv("ITHACA_WORKER_CONFIG");
}

TEST(WorkerFlagsTest, WhatIsWrongIsSaidInOneLine) {
  for (const std::vector<const char*>& argv :
       std::vector<std::vector<const char*>>{
           {},
           {"--coordinator=a:1", "--no-such-flag"},
           {"--coordinator=a:1", "--threads=many"},
           {"--coordinator=a:1", "--threads=-1"},
           {"--coordinator=a:1", "--log-format=xml"},
           {"--coordinator=a:1", "--log-level=loud"},
           {"--coordinator=a:1", "--local-slot=-1"},
           {"--coordinator=a:1", "--peer-address=a", "--peer-interface=b"}}) {
    const WorkerExit exit = Exit(argv);
    EXPECT_EQ(exit.code, 2);
    EXPECT_EQ(exit.text.find('\n'), exit.text.size() - 1) << exit.text;
  }
  EXPECT_THAT(Exit({}).text, HasSubstr("--coordinator"));
}

TEST(WorkerFlagsTest, HelpAndVersionExitWell) {
  const WorkerExit help = Exit({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.text, HasSubstr("--metrics-listen"));
  EXPECT_THAT(help.text, HasSubstr("SIGTERM"));
  EXPECT_EQ(Exit({"--version"}).code, 0);
}

}  // namespace
}  // namespace ithaca
