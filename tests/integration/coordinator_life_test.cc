// The life of a coordinator process: start, drain and end, and calls that run
// while something happens to it.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

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
