#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "client/cli/attend_command.h"
#include "client/cli/bench_command.h"
#include "client/cli/exit_code.h"
#include "client/cli/info_command.h"
#include "client/cli/random_call.h"
#include "client/fake_attention_service.h"
#include "client/safetensors.h"

// The three commands against a service in this process.

namespace ithaca::client {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CommandsTest : public ::testing::Test {
 protected:
  ConnectionFlags Connection() const {
    return {.address = service_.address(), .connect_timeout_seconds = 60};
  }

  FakeAttentionService service_;
  std::ostringstream out_;
  std::ostringstream err_;
};

// The fake echoes the query. With one token it is the output if the value is
// the query too: then the right answer is known to be right.
TEST_F(CommandsTest, AttendVerifiesARightAnswer) {
  const std::string path = ::testing::TempDir() + "/one_token.safetensors";
  CallShape shape;
  shape.image_tokens = 1;
  shape.num_heads = shape.num_kv_heads = 2;
  shape.head_dim = 4;
  const auto call = MakeRandomCall(shape, 1, 1 << 20);
  ASSERT_TRUE(WriteSafetensors(path, {{"query", call->query},
                                      {"key", call->key},
                                      {"value", call->query}})
                  .ok());
  const std::string written = ::testing::TempDir() + "/output.safetensors";
  const AttendFlags flags{.connection = Connection(),
                          .input = path,
                          .output = written,
                          .request_id = "abc",
                          .verify = true,
                          .json = true};
  EXPECT_EQ(RunAttend(flags, out_, err_), kSuccess) << err_.str();
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["request_id"], "abc");
  EXPECT_EQ(json["query_shape"], (std::vector<int>{1, 1, 2, 4}));
  EXPECT_EQ(json["verify"]["passed"], true);
  EXPECT_EQ(json["verify"]["compared_rows"], 2);
  EXPECT_EQ(json["report"]["world_size"], 2);
  const auto output = ReadSafetensors(written, {"output"});
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_EQ((*output)[0].shape(), call->query.shape);
}

TEST_F(CommandsTest, AttendFindsAWrongAnswer) {
  const AttendFlags flags{.connection = Connection(), .verify = true};
  EXPECT_EQ(RunAttend(flags, out_, err_), kWrongNumbers);
  EXPECT_THAT(out_.str(), HasSubstr("over 80 of 80 rows: WRONG"));
  EXPECT_THAT(err_.str(), HasSubstr("beyond its error limit"));
}

TEST_F(CommandsTest, AttendPrintsTheReport) {
  const AttendFlags flags{.connection = Connection()};
  EXPECT_EQ(RunAttend(flags, out_, err_), kSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("query     bfloat16 [1, 20, 4, 8]"));
  EXPECT_THAT(out_.str(), HasSubstr("plane     unary\n"));
  EXPECT_THAT(out_.str(), HasSubstr("attention     500 us   50.0 %"));
  EXPECT_THAT(out_.str(), Not(HasSubstr("verify")));
}

TEST_F(CommandsTest, AttendRefusesWhatCannotBeBeforeItConnects) {
  AttendFlags flags;
  flags.connection.address = "127.0.0.1:1";
  flags.connection.plane = "unary";
  flags.call.shape = "wan720";
  EXPECT_EQ(RunAttend(flags, out_, err_), kUsage);
  EXPECT_THAT(err_.str(), HasSubstr("one message holds at most 1024 MiB"));
  flags.call.shape = "tiny";
  flags.input = "/nonexistent/a.safetensors";
  EXPECT_EQ(RunAttend(flags, out_, err_), kUsage);
  EXPECT_THAT(err_.str(), HasSubstr("/nonexistent/a.safetensors"));
  flags.call.head_dim = 8;
  EXPECT_EQ(RunAttend(flags, out_, err_), kUsage);
  EXPECT_THAT(err_.str(), HasSubstr("--input brings its own tensors"));
}

TEST_F(CommandsTest, APlaneThatIsOffIsToldAndReplaced) {
  AttendFlags flags{.connection = Connection()};
  flags.connection.plane = "shared-memory";
  EXPECT_EQ(RunAttend(flags, out_, err_), kSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("plane     unary: the server has"));
  EXPECT_THAT(err_.str(), HasSubstr("shared memory disabled"));
  flags.connection.plane = "stream";
  flags.json = true;
  out_.str("");
  EXPECT_EQ(RunAttend(flags, out_, err_), kSuccess) << err_.str();
  EXPECT_EQ(nlohmann::json::parse(out_.str())["plane"], "stream");
}

TEST_F(CommandsTest, NoServerIsToldWithWhatToDo) {
  AttendFlags flags;
  flags.connection.address = "127.0.0.1:1";
  flags.connection.connect_timeout_seconds = 0.2;
  EXPECT_EQ(RunAttend(flags, out_, err_), kTryLater);
  EXPECT_THAT(err_.str(), HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(err_.str(), HasSubstr("ithaca info"));
}

TEST_F(CommandsTest, InfoShowsGroupsAndHealth) {
  InfoFlags flags{.connection = Connection()};
  EXPECT_EQ(RunInfo(flags, out_, err_), kSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("version fake, cpu"));
  EXPECT_THAT(out_.str(), HasSubstr("health      serving"));
  EXPECT_THAT(out_.str(), HasSubstr("host/1 host/2"));
  EXPECT_THAT(out_.str(), HasSubstr("planes      unary, stream\n"));
  out_.str("");
  flags.json = true;
  EXPECT_EQ(RunInfo(flags, out_, err_), kSuccess);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["groups"][0]["state"], "ready");
  EXPECT_EQ(json["kernels"][0], "math");
  EXPECT_EQ(json["serving"], true);
}

TEST_F(CommandsTest, BenchMeasuresAllCallsAndShowsNoBarWithoutATerminal) {
  const BenchFlags flags{.connection = Connection(),
                         .concurrency = 2,
                         .calls = 30,
                         .warm_up_calls = 3,
                         .json = true};
  EXPECT_EQ(RunBench(flags, /*show_progress=*/false, out_, err_), kSuccess);
  EXPECT_EQ(err_.str(), "");
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["calls"], 30);
  EXPECT_EQ(json["failed_calls"], 0);
  EXPECT_EQ(json["plane"], "unary");
  EXPECT_EQ(json["server_seconds"]["scatter"]["p50"], 2e-4);
  EXPECT_NEAR(json["server_seconds"]["coordinator"]["p50"].get<double>(), 2e-4,
              1e-12);
  EXPECT_GT(json["client_seconds"]["p99"], 0);
}

TEST(ConnectionFlagsTest, NumbersThatHaveToBeAboveZeroSaySo) {
  EXPECT_EQ(CheckAboveZero("0.5"), "");
  for (const char* text : {"0", "-1", "many", "nan", ""}) {
    EXPECT_THAT(CheckAboveZero(text), HasSubstr("expected a number above 0"))
        << text;
  }
}

TEST_F(CommandsTest, ABenchWithoutATimeForACallSaysSo) {
  const BenchFlags flags{.connection = Connection(),
                         .duration_seconds = 1e-12,
                         .warm_up_calls = 0};
  EXPECT_EQ(RunBench(flags, false, out_, err_), kUsage);
  EXPECT_THAT(err_.str(), HasSubstr("no call was begun"));
}

TEST(BenchCommandTest, FailingServerEndsTheBench) {
  FakeAttentionService service([](grpc::CallbackServerContext*,
                                  const v1::AttentionRequest&,
                                  v1::AttentionResponse*) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "layout");
  });
  BenchFlags flags;
  flags.connection.address = service.address();
  flags.calls = 100;
  std::ostringstream out;
  std::ostringstream err;
  EXPECT_EQ(RunBench(flags, /*show_progress=*/false, out, err), kRefused);
  EXPECT_THAT(err.str(), HasSubstr("INVALID_ARGUMENT: layout"));
  flags.warm_up_calls = 0;
  EXPECT_EQ(RunBench(flags, /*show_progress=*/false, out, err), kRefused);
  EXPECT_THAT(err.str(), HasSubstr("10 calls ended with INVALID_ARGUMENT"));
}

}  // namespace
}  // namespace ithaca::client
