#include "server/coordinator_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace ithaca::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::variant<CoordinatorFlags, CoordinatorExit> Parse(
    std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "ithaca-coordinator");
  return ParseCoordinatorFlags(static_cast<int>(arguments.size()),
                               arguments.data());
}

CoordinatorFlags Flags(const std::vector<const char*>& arguments) {
  const auto parsed = Parse(arguments);
  if (const auto* exit = std::get_if<CoordinatorExit>(&parsed)) {
    ADD_FAILURE() << exit->text;
    return {};
  }
  return std::get<CoordinatorFlags>(parsed);
}

CoordinatorExit Exit(const std::vector<const char*>& arguments) {
  const auto parsed = Parse(arguments);
  if (std::holds_alternative<CoordinatorFlags>(parsed)) {
    ADD_FAILURE() << arguments.back();
    return {};
  }
  return std::get<CoordinatorExit>(parsed);
}

TEST(CoordinatorFlagsTest, DefaultsServeOnThisHostOnly) {
  const CoordinatorFlags flags = Flags({});
  EXPECT_EQ(flags.listen, "127.0.0.1:50051");
  EXPECT_EQ(flags.metrics_listen, "127.0.0.1:9400");
  EXPECT_EQ(flags.group_size, 1);
  EXPECT_EQ(flags.max_message_bytes, int64_t{1} << 30);
  EXPECT_EQ(flags.calls_in_flight, 2);
  EXPECT_FALSE(flags.allow_shared_memory);
  EXPECT_FALSE(flags.allow_cuda_memory);
  EXPECT_EQ(flags.collective_timeout, absl::Seconds(30));
  EXPECT_EQ(flags.stream_idle_timeout, absl::Seconds(60));
}

TEST(CoordinatorFlagsTest, AGroupIsAllLocalWorkersUnlessSaidOtherwise) {
  EXPECT_EQ(Flags({"--local-workers=4"}).group_size, 4);
  EXPECT_EQ(Flags({"--local-workers=4", "--group-size=2"}).group_size, 2);
}

TEST(CoordinatorFlagsTest, EveryFlagIsRead) {
  const CoordinatorFlags flags =
      Flags({"--listen=0.0.0.0:1", "--metrics-listen=0.0.0.0:2",
             "--auth-token-file=/t", "--device=cuda", "--worker-binary=/w",
             "--worker-flag=--threads=2", "--worker-flag=--log-level=debug",
             "--max-message-bytes=512MiB", "--max-request-bytes=1000",
             "--max-inflight-bytes=16GiB", "--max-queued-requests=7",
             "--calls-in-flight=3", "--collective-timeout-seconds=1.5",
             "--formation-timeout-seconds=2", "--drain-timeout-seconds=0",
             "--stream-idle-timeout-seconds=20", "--log-format=json",
             "--log-level=warning"});
  EXPECT_EQ(flags.listen, "0.0.0.0:1");
  EXPECT_EQ(flags.metrics_listen, "0.0.0.0:2");
  EXPECT_EQ(flags.auth_token_file, "/t");
  EXPECT_EQ(flags.device, "cuda");
  EXPECT_EQ(flags.worker_binary, "/w");
  EXPECT_THAT(flags.worker_flags,
              ElementsAre("--threads=2", "--log-level=debug"));
  EXPECT_EQ(flags.max_message_bytes, int64_t{512} << 20);
  EXPECT_EQ(flags.max_request_bytes, 1000);
  EXPECT_EQ(flags.max_inflight_bytes, int64_t{16} << 30);
  EXPECT_EQ(flags.max_queued_requests, 7);
  EXPECT_EQ(flags.calls_in_flight, 3);
  EXPECT_EQ(flags.collective_timeout, absl::Milliseconds(1500));
  EXPECT_EQ(flags.formation_timeout, absl::Seconds(2));
  EXPECT_EQ(flags.stream_idle_timeout, absl::Seconds(20));
  EXPECT_EQ(flags.drain_timeout, absl::ZeroDuration());
  EXPECT_EQ(flags.log_format, LogFormat::kJson);
  EXPECT_EQ(flags.log_level, spdlog::level::warn);
}

TEST(CoordinatorFlagsTest, TheCommandLineWinsThenTheEnvironmentThenTheFile) {
  const std::string path = testing::TempDir() + "/coordinator.toml";
  std::ofstream(path) << "group-size=2\ncalls-in-flight=3\n";
  setenv("ITHACA_CALLS_IN_FLIGHT", "5", 1);
  setenv("ITHACA_MAX_QUEUED_REQUESTS", "6", 1);
  setenv("ITHACA_LOCAL_WORKERS", "8", 1);
  const std::string config = "--config=" + path;
  const CoordinatorFlags flags =
      Flags({config.c_str(), "--max-queued-requests=7"});
  unsetenv("ITHACA_CALLS_IN_FLIGHT");
  unsetenv("ITHACA_MAX_QUEUED_REQUESTS");
  unsetenv("ITHACA_LOCAL_WORKERS");
  EXPECT_EQ(flags.local_workers, 8);
  EXPECT_EQ(flags.group_size, 2);
  EXPECT_EQ(flags.calls_in_flight, 5);
  EXPECT_EQ(flags.max_queued_requests, 7);
}

TEST(CoordinatorFlagsTest, TheEnvironmentMayNameTheConfigFile) {
  const std::string path = testing::TempDir() + "/named.toml";
  std::ofstream(path) << "local-workers=3\n";
  const std::string other = testing::TempDir() + "/other.toml";
  std::ofstream(other) << "local-workers=4\n";
  const std::string config = "--config=" + other;
  setenv("ITHACA_CONFIG", path.c_str(), 1);
  EXPECT_EQ(Flags({}).local_workers, 3);
  EXPECT_EQ(Flags({"--local-workers=5"}).local_workers, 5);
  EXPECT_EQ(Flags({config.c_str()}).local_workers, 4);
  setenv("ITHACA_CONFIG", "/no/such/file", 1);
  const CoordinatorExit exit = Exit({});
  setenv("ITHACA_CONFIG", "", 1);
  EXPECT_EQ(Flags({}).local_workers, 0);
  unsetenv("ITHACA_CONFIG");
  EXPECT_EQ(exit.code, 2);
  EXPECT_THAT(exit.text, HasSubstr("/no/such/file"));
}

TEST(CoordinatorFlagsTest, SwitchesComeBareWithAValueOrFromTheEnvironment) {
  EXPECT_TRUE(Flags({"--allow-shared-memory"}).allow_shared_memory);
  EXPECT_TRUE(Flags({"--allow-cuda-memory=true"}).allow_cuda_memory);
  EXPECT_FALSE(Flags({"--allow-shared-memory", "--allow-shared-memory=false"})
                   .allow_shared_memory);
  setenv("ITHACA_ALLOW_SHARED_MEMORY", "1", 1);
  const CoordinatorFlags flags = Flags({});
  unsetenv("ITHACA_ALLOW_SHARED_MEMORY");
  EXPECT_TRUE(flags.allow_shared_memory);
  EXPECT_FALSE(flags.allow_cuda_memory);
}

TEST(CoordinatorFlagsTest, WrongFlagsAreOneLineThatNamesThem) {
  for (const char* flag :
       {"--no-such-flag=1", "--group-size=0", "--local-workers=-1",
        "--device=tpu", "--max-message-bytes=3GiB", "--max-request-bytes=many",
        "--calls-in-flight=0", "--drain-timeout-seconds=-1",
        "--collective-timeout-seconds=nan", "--formation-timeout-seconds=0",
        "--listen=127.0.0.1:99999", "--log-format=xml", "--log-level=loud",
        "--allow-shared-memory=perhaps", "--config=/no/such/file"}) {
    const CoordinatorExit exit = Exit({flag});
    EXPECT_EQ(exit.code, 2) << flag;
    EXPECT_EQ(exit.text.find('\n'), exit.text.size() - 1) << exit.text;
    const std::string name(flag, std::string(flag).find('='));
    EXPECT_THAT(exit.text, HasSubstr(name.substr(2))) << exit.text;
  }
}

TEST(CoordinatorFlagsTest, OfAFlagGivenTwiceTheLastWins) {
  EXPECT_EQ(Flags({"--listen=a:1", "--listen=b:2"}).listen, "b:2");
  EXPECT_EQ(Flags({"--group-size=2", "--group-size=3"}).group_size, 3);
}

TEST(CoordinatorFlagsTest, HelpAndVersionEndWell) {
  const CoordinatorExit help = Exit({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.text, HasSubstr("--drain-timeout-seconds"));
  EXPECT_EQ(Exit({"--version"}).code, 0);
}

}  // namespace
}  // namespace ithaca::server
