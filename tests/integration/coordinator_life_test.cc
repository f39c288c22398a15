// The life of a coordinator process: start, drain and end, and calls that run
// while something happens to it.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.pb.h"
#include "tests/integration/attention_requests.h"
#include "tests/integration/coordinator_process.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Workers that are late in each exchange, so that calls take a while.
std::vector<std::string> SlowWorkers(int delay_ms) {
  return {"--local-workers=2",
          "--worker-flag=--inject-delay-before-exchange-ms=" +
              std::to_string(delay_ms),
          // The readiness probe is as slow; it must not wait behind the call.
          "--calls-in-flight=1"};
}

TEST(CoordinatorLifeTest, ADuplicateIdInFlightIsRefusedAndTheFirstIsRight) {
  CoordinatorProcess server(SlowWorkers(1000));
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  v1::AttentionResponse first_response;
  grpc::Status first;
  std::thread first_call(
      [&] { first = server.Call(GoodRequest("x", 0), &first_response); });
  ASSERT_TRUE(AwaitTrue(
      [&] { return server.Metric("ithaca_in_flight_requests") == 1; }));
  v1::AttentionResponse response;
  EXPECT_EQ(server.Call(GoodRequest("x", 100), &response).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  first_call.join();
  ASSERT_TRUE(first.ok()) << first.error_message();
  EXPECT_EQ(WhatIsWrong(first_response, 0), "");
  ASSERT_TRUE(server.Call(GoodRequest("x", 100), &response).ok());
  EXPECT_EQ(WhatIsWrong(response, 100), "");
}

TEST(CoordinatorLifeTest, AWorkerKilledDuringACallEndsItUnavailable) {
  CoordinatorProcess server(SlowWorkers(1000));
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  grpc::Status status;
  std::thread call([&] {
    v1::AttentionResponse response;
    status = server.Call(GoodRequest("x"), &response);
  });
  ASSERT_TRUE(AwaitTrue(
      [&] { return server.Metric("ithaca_in_flight_requests") == 1; }));
  const auto workers = server.WorkerPids();
  ASSERT_EQ(workers.size(), 2u);
  kill(workers[0], SIGKILL);
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
      << status.error_message();
  EXPECT_EQ(server.Metric("ithaca_in_flight_requests"), 0);
  EXPECT_EQ(server.Metric("ithaca_in_flight_bytes"), 0);
}

TEST(CoordinatorLifeTest, AllCallsOfALostGroupEndSoonAndTheNextIsRight) {
  CoordinatorProcess server({"--local-workers=4", "--group-size=4",
                             "--worker-flag="
                             "--inject-delay-before-exchange-ms=500"});
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  constexpr int kCalls = 8;
  std::vector<grpc::Status> statuses(kCalls);
  std::vector<v1::AttentionResponse> responses(kCalls);
  std::vector<std::thread> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.emplace_back([&, i] {
      statuses[i] =
          server.Call(GoodRequest("call-" + std::to_string(i)), &responses[i]);
    });
  }
  ASSERT_TRUE(AwaitTrue(
      [&] { return server.Metric("ithaca_in_flight_requests") == kCalls; }));
  const auto workers = server.WorkerPids();
  ASSERT_EQ(workers.size(), 4u);
  kill(workers[2], SIGKILL);
  const absl::Time killed = absl::Now();
  for (std::thread& call : calls) call.join();
  // Ranks that waited for the dead one until the collective timeout, 30 s,
  // would be far later.
  EXPECT_LT(absl::Now() - killed, absl::Seconds(15));
  int lost = 0;
  for (int i = 0; i < kCalls; ++i) {
    if (statuses[i].ok()) {
      EXPECT_EQ(WhatIsWrong(responses[i]), "");
      continue;
    }
    EXPECT_EQ(statuses[i].error_code(), grpc::StatusCode::UNAVAILABLE);
    ++lost;
  }
  EXPECT_GT(lost, 0);
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  v1::AttentionResponse response;
  EXPECT_TRUE(server.Call(GoodRequest("next"), &response).ok());
  EXPECT_EQ(WhatIsWrong(response), "");
}

TEST(CoordinatorLifeTest, AFrozenWorkerTurnsHealthOffAndTheGroupComesBack) {
  CoordinatorProcess server({"--local-workers=2"});
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  ASSERT_EQ(server.Health("ithaca.v1.AttentionService"), 1);
  const auto workers = server.WorkerPids();
  ASSERT_EQ(workers.size(), 2u);
  kill(workers[1], SIGSTOP);
  const absl::Time frozen = absl::Now();
  ASSERT_TRUE(AwaitTrue(
      [&] { return server.Health("ithaca.v1.AttentionService") == 2; }));
  EXPECT_LT(absl::Now() - frozen, absl::Seconds(10));
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  v1::AttentionResponse response;
  EXPECT_TRUE(server.Call(GoodRequest("next"), &response).ok());
  EXPECT_EQ(WhatIsWrong(response), "");
}

TEST(CoordinatorLifeTest, SigtermFinishesTheRunningCallAndExitsWith0) {
  CoordinatorProcess server(SlowWorkers(1000));
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  grpc::Status running;
  v1::AttentionResponse running_response;
  std::thread call([&] {
    running = server.Call(GoodRequest("running"), &running_response);
  });
  ASSERT_TRUE(AwaitTrue(
      [&] { return server.Metric("ithaca_in_flight_requests") == 1; }));
  server.Signal(SIGTERM);
  ASSERT_TRUE(AwaitTrue([&] { return server.Get("/readyz").code != 200; }));
  v1::AttentionResponse response;
  EXPECT_EQ(server.Call(GoodRequest("late"), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  call.join();
  EXPECT_TRUE(running.ok()) << running.error_message();
  EXPECT_EQ(WhatIsWrong(running_response), "");
  EXPECT_EQ(server.AwaitExit(), 0) << server.Log();
}

TEST(CoordinatorLifeTest, SigtermDuringTheStartExitsWith0) {
  CoordinatorProcess server({"--local-workers=2"});
  ASSERT_TRUE(server.AwaitListening());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 0) << server.Log();
}

TEST(CoordinatorLifeTest, ASecondSigtermEndsItWithoutItsCalls) {
  CoordinatorProcess server(SlowWorkers(5000));
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  grpc::Status status;
  std::thread call([&] {
    v1::AttentionResponse response;
    status = server.Call(GoodRequest("x"), &response);
  });
  ASSERT_TRUE(AwaitTrue(
      [&] { return server.Metric("ithaca_in_flight_requests") == 1; }));
  server.Signal(SIGTERM);
  ASSERT_TRUE(AwaitTrue([&] { return server.Get("/readyz").code != 200; }));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 128 + SIGTERM) << server.Log();
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(CoordinatorLifeTest, AnAddressInUseIsAPlainErrorThatNamesIt) {
  CoordinatorProcess first({"--group-size=2"});
  ASSERT_TRUE(first.AwaitListening());
  {
    CoordinatorProcess second({"--listen=" + first.address()});
    EXPECT_EQ(second.AwaitExit(), 1);
    EXPECT_THAT(second.Log(), HasSubstr(first.address()));
  }
  const std::string metrics =
      "127.0.0.1:" + std::to_string(first.metrics_port());
  CoordinatorProcess third({"--metrics-listen=" + metrics});
  EXPECT_EQ(third.AwaitExit(), 1);
  EXPECT_THAT(third.Log(), HasSubstr(metrics));
  CoordinatorProcess fourth({"--metrics-listen=127.0.0.1:70000"});
  EXPECT_EQ(fourth.AwaitExit(), 1);
  EXPECT_THAT(fourth.Log(), HasSubstr("70000"));
}

TEST(CoordinatorLifeTest, WorkersThatCannotRunHereEndItWithTheirOwnWords) {
  for (const char* flag : {"--worker-flag=--threads=many", "--device=cuda"}) {
    CoordinatorProcess server({"--local-workers=2", flag});
    EXPECT_EQ(server.AwaitExit(), 1);
    EXPECT_THAT(server.Log(), HasSubstr("ithaca-worker: "));
    EXPECT_THAT(server.Log(), HasSubstr("exited with code 2"));
  }
}

TEST(CoordinatorLifeTest, AWorkerBinaryThatIsNoneEndsItWithItsPath) {
  for (const char* binary : {"/no/such/worker", "/etc/hostname"}) {
    CoordinatorProcess server(
        {"--local-workers=2", std::string("--worker-binary=") + binary});
    EXPECT_EQ(server.AwaitExit(), 1);
    EXPECT_THAT(server.Log(), HasSubstr(binary));
  }
}

TEST(CoordinatorLifeTest, AtLevelOffItStillSaysWhyItCannotStart) {
  CoordinatorProcess server({"--log-level=off", "--metrics-listen=here"});
  EXPECT_EQ(server.AwaitExit(), 1);
  EXPECT_THAT(server.Log(), StartsWith("ithaca-coordinator: cannot start: "));
}

TEST(CoordinatorLifeTest, AnOrderlyEndWarnsOfNothing) {
  CoordinatorProcess server({"--local-workers=2"});
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 0);
  EXPECT_THAT(server.Log(), Not(HasSubstr("\"warning\"")));
  EXPECT_THAT(server.Log(), Not(HasSubstr("\"error\"")));
}

TEST(CoordinatorLifeTest, AWorkerThatIsToldToEndLeavesInGoodOrder) {
  CoordinatorProcess server(
      {"--local-workers=3", "--group-size=2", "--log-level=info"});
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  const uint64_t before = server.Generation();
  const auto members = server.WorkerPids();
  ASSERT_EQ(members.size(), 2u);
  kill(members[0], SIGTERM);
  ASSERT_TRUE(AwaitTrue([&] { return server.Generation() != before; }));
  ASSERT_TRUE(AwaitTrue([&] { return server.Get("/readyz").code == 200; }));
  v1::AttentionResponse response;
  EXPECT_TRUE(server.Call(GoodRequest("x"), &response).ok());
  EXPECT_EQ(WhatIsWrong(response), "");
  EXPECT_THAT(server.Log(), HasSubstr("worker left"));
  EXPECT_THAT(server.Log(), Not(HasSubstr("group lost")));
}

TEST(CoordinatorLifeTest, WithATokenLocalWorkersServeAndClientsMustSendIt) {
  const std::string path = ::testing::TempDir() + "/token";
  std::ofstream(path) << "secret\n";
  CoordinatorProcess server({"--local-workers=2", "--auth-token-file=" + path});
  ASSERT_TRUE(server.AwaitReady()) << server.Log();
  v1::AttentionResponse response;
  EXPECT_EQ(server.Call(GoodRequest("x"), &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "bearer secret");
  const grpc::Status status =
      server.stub()->Attention(&context, GoodRequest("x"), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(WhatIsWrong(response), "");
}

// A hundred megabytes of zeros are a hundred kilobytes on the wire.
TEST(CoordinatorLifeTest, ACompressedMessageIsRefusedBeforeItGrows) {
  CoordinatorProcess server({"--group-size=2"});
  ASSERT_TRUE(server.AwaitListening());
  v1::AttentionResponse response;
  ASSERT_EQ(server.Call(GoodRequest("x"), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  const int64_t before = server.PeakMemoryBytes();
  ASSERT_GT(before, 0);
  v1::AttentionRequest request = GoodRequest("x");
  request.mutable_query()->set_data(std::string(100 << 20, '\0'));
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    grpc::ClientContext context;
    context.set_compression_algorithm(algorithm);
    const grpc::Status status =
        server.stub()->Attention(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED)
        << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("disabled"));
  }
  EXPECT_LT(server.PeakMemoryBytes() - before, 16 << 20);
  EXPECT_EQ(server.Call(GoodRequest("x"), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(CoordinatorLifeTest, MessagesOverTheLimitCostNoMemory) {
  CoordinatorProcess server({"--group-size=2", "--max-message-bytes=1MiB",
                             "--max-inflight-bytes=64MiB"});
  ASSERT_TRUE(server.AwaitListening());
  const int64_t before = server.PeakMemoryBytes();
  ASSERT_GT(before, 0);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&, i] {
      grpc::ChannelArguments arguments;
      arguments.SetMaxSendMessageSize(-1);
      arguments.SetInt("connection", i);  // one of its own
      const auto stub = v1::AttentionService::NewStub(grpc::CreateCustomChannel(
          server.address(), grpc::InsecureChannelCredentials(), arguments));
      v1::AttentionRequest request = GoodRequest("x");
      request.mutable_query()->set_data(std::string(200 << 20, '\0'));
      grpc::ClientContext context;
      v1::AttentionResponse response;
      // By gRPC, when the message or when the memory is too large.
      EXPECT_FALSE(stub->Attention(&context, request, &response).ok());
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_LT(server.PeakMemoryBytes() - before, int64_t{500} << 20);
  v1::AttentionResponse response;
  EXPECT_EQ(server.Call(GoodRequest("x"), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST(CoordinatorLifeTest, WithoutWorkersCallsAreUnavailableAtOnce) {
  CoordinatorProcess server({"--group-size=2"});
  ASSERT_TRUE(server.AwaitListening());
  EXPECT_EQ(server.Get("/livez").code, 200);
  EXPECT_EQ(server.Get("/readyz").code, 503);
  EXPECT_EQ(server.Health(""), 2);
  EXPECT_EQ(server.Health("ithaca.v1.AttentionService"), 2);
  v1::AttentionResponse response;
  EXPECT_EQ(server.Call(GoodRequest("x"), &response).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit(), 0);
}

}  // namespace
}  // namespace ithaca
