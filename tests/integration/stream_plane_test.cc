// Tensors in chunks: the real coordinator, with real workers.

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/attention_call.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "tests/integration/attention_requests.h"
#include "tests/integration/coordinator_process.h"
#include "tests/integration/stream_client.h"
#include "tests/oracle/tensor_data.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

// Coordinators that tests share, by their number of workers; they end with the
// tests.
class SharedCoordinators : public ::testing::Environment {
 public:
  CoordinatorProcess* Get(int workers) {
    auto& process = processes_[workers];
    if (process == nullptr) {
      process = std::make_unique<CoordinatorProcess>(std::vector<std::string>{
          "--local-workers=" + std::to_string(workers)});
      if (!process->AwaitReady()) ADD_FAILURE() << process->Log();
    }
    return process.get();
  }
  void TearDown() override { processes_.clear(); }

 private:
  std::map<int, std::unique_ptr<CoordinatorProcess>> processes_;
};

auto* const kSharedCoordinators = static_cast<SharedCoordinators*>(
    ::testing::AddGlobalTestEnvironment(new SharedCoordinators));

AttentionShape Shape(int64_t batch, int64_t image, int64_t text, int64_t heads,
                     int64_t kv_heads) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.batch = batch;
  shape.image_tokens = image;
  shape.text_tokens = text;
  shape.valid_text_tokens.assign(static_cast<size_t>(batch), text);
  shape.valid_text_tokens[0] = text / 2;
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  shape.head_dim = 24;
  return shape;
}

class StreamPlaneTest : public ::testing::TestWithParam<int> {
 protected:
  CoordinatorProcess* server() { return kSharedCoordinators->Get(GetParam()); }

  void ExpectGood() {
    StreamClient stream(server()->stub(), GoodRequest("good"));
    stream.SendAll(100);
    v1::AttentionResponse response;
    const grpc::Status status = stream.Receive(&response);
    ASSERT_TRUE(status.ok()) << status.error_message() << server()->Log();
    EXPECT_EQ(WhatIsWrong(response), "");
  }
};

INSTANTIATE_TEST_SUITE_P(Workers, StreamPlaneTest, ::testing::Values(2, 4));

TEST_P(StreamPlaneTest, GivesTheSameBitsAsTheUnaryCall) {
  std::vector<AttentionShape> shapes = {
      Shape(1, 64, 0, 8, 8),  // no text
      Shape(2, 37, 5, 8, 2),  // batch, uneven shares, GQA
      Shape(3, 2, 4, 6, 6),   // fewer image tokens than ranks, at P = 4
      Shape(2, 0, 9, 4, 4),   // text only
      Shape(1, 700, 77, 16, 4),
  };
  for (size_t i = shapes.size(); i-- > 0;) {
    AttentionShape shape = shapes[i];
    if (shape.text_tokens == 0) continue;
    shape.order = TokenOrder::kTextFirst;
    shapes.push_back(shape);
    if (shape.image_tokens == 0) continue;
    shape.image_queries_only = true;
    shapes.push_back(shape);
  }
  uint64_t seed = 0;
  for (const AttentionShape& shape : shapes) {
    v1::AttentionRequest request =
        MakeRequest("r", shape, oracle::RandomInputs(shape, ++seed));
    if (seed % 2 == 0) {
      request.mutable_options()->set_head_schedule(v1::HEAD_SCHEDULE_PER_HEAD);
    }
    v1::AttentionResponse expected;
    const grpc::Status unary = server()->Call(request, &expected);
    ASSERT_TRUE(unary.ok()) << unary.error_message();
    for (const size_t chunk_bytes : {1000, 1 << 20}) {
      StreamClient stream(server()->stub(), request);
      stream.SendAll(chunk_bytes);
      v1::AttentionResponse response;
      const grpc::Status status = stream.Receive(&response);
      ASSERT_TRUE(status.ok()) << status.error_message() << server()->Log();
      EXPECT_EQ(response.output().data(), expected.output().data());
      EXPECT_EQ(response.output().dtype(), expected.output().dtype());
      EXPECT_THAT(response.output().shape(),
                  ::testing::ElementsAreArray(expected.output().shape()));
      EXPECT_EQ(response.report().kernel(), expected.report().kernel());
      EXPECT_EQ(response.report().stage_seconds_size(),
                expected.report().stage_seconds_size());
    }
  }
}

TEST_P(StreamPlaneTest, ManyStreamsAndUnaryCallsGoTogether) {
  std::vector<std::thread> clients;
  clients.reserve(8);
  for (int client = 0; client < 8; ++client) {
    clients.emplace_back([this, client] {
      for (int i = 0; i < 10; ++i) {
        const double base = 10 * client + i;
        const v1::AttentionRequest request =
            GoodRequest(std::to_string(client), base);
        v1::AttentionResponse response;
        grpc::Status status;
        if (client % 2 == 0) {
          status = server()->Call(request, &response);
        } else {
          StreamClient stream(server()->stub(), request);
          stream.SendAll(500);
          status = stream.Receive(&response);
        }
        ASSERT_TRUE(status.ok()) << status.error_message();
        EXPECT_EQ(WhatIsWrong(response, base), "");
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_EQ(server()->Metric("ithaca_in_flight_requests"), 0);
  EXPECT_EQ(server()->Metric("ithaca_in_flight_bytes"), 0);
}

TEST_P(StreamPlaneTest, AStreamThatBreaksOffHarmsNobody) {
  for (int i = 0; i < 20; ++i) {
    StreamClient stream(server()->stub(), GoodRequest("broken"));
    stream.SendRequest();
    stream.SendTensor(v1::TENSOR_ROLE_QUERY, 64);
    if (i % 2 == 0) stream.context().TryCancel();
    stream.HalfClose();
    v1::AttentionResponse response;
    EXPECT_EQ(stream.Receive(&response).error_code(),
              i % 2 == 0 ? grpc::StatusCode::CANCELLED
                         : grpc::StatusCode::INVALID_ARGUMENT);
    ASSERT_TRUE(AwaitTrue(
        [this] { return server()->Metric("ithaca_in_flight_requests") == 0; }));
  }
  EXPECT_EQ(server()->Metric("ithaca_in_flight_bytes"), 0);
  ExpectGood();
}

TEST_P(StreamPlaneTest, AWorkersDeathEndsAnUploadAndTheNextGroupServes) {
  CoordinatorProcess* const process = server();
  ExpectGood();
  const uint64_t generation = process->Generation();
  StreamClient stream(process->stub(), GoodRequest("unlucky"));
  stream.SendRequest();
  stream.SendTensor(v1::TENSOR_ROLE_QUERY, 64);
  ASSERT_TRUE(
      AwaitTrue([&] { return process->Metric("ithaca_in_flight_bytes") > 0; }));
  kill(process->WorkerPids().front(), SIGKILL);
  v1::AttentionResponse response;
  const grpc::Status status = stream.Receive(&response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
      << status.error_message();
  EXPECT_EQ(stream.context().GetServerTrailingMetadata().count(
                "ithaca-retry-after-ms"),
            1u);
  ASSERT_TRUE(AwaitTrue([&] { return process->Generation() > generation; }));
  ASSERT_TRUE(process->AwaitReady());
  ExpectGood();
}

TEST(StreamPlaneLifeTest, ADrainLetsAStreamFinish) {
  CoordinatorProcess process({"--local-workers=2"});
  ASSERT_TRUE(process.AwaitReady()) << process.Log();
  StreamClient stream(process.stub(), GoodRequest("last"));
  stream.SendRequest();
  stream.SendTensor(v1::TENSOR_ROLE_QUERY, 64);
  ASSERT_TRUE(
      AwaitTrue([&] { return process.Metric("ithaca_in_flight_bytes") > 0; }));
  process.Signal(SIGTERM);
  ASSERT_TRUE(AwaitTrue([&] { return process.Get("/readyz").code == 503; }));
  stream.SendTensor(v1::TENSOR_ROLE_KEY, 64);
  stream.SendTensor(v1::TENSOR_ROLE_VALUE, 64);
  stream.HalfClose();
  v1::AttentionResponse response;
  const grpc::Status status = stream.Receive(&response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(WhatIsWrong(response), "");
  EXPECT_EQ(process.AwaitExit(), 0) << process.Log();
}

TEST(StreamPlaneLifeTest, AClientThatStallsLosesItsCall) {
  CoordinatorProcess process(
      {"--local-workers=2", "--stream-idle-timeout-seconds=0.5"});
  ASSERT_TRUE(process.AwaitReady()) << process.Log();
  StreamClient stream(process.stub(), GoodRequest("stalled"));
  stream.SendRequest();
  v1::AttentionResponse response;
  const grpc::Status status = stream.Receive(&response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("stream-idle-timeout"));
  EXPECT_EQ(process.Metric("ithaca_in_flight_bytes"), 0);
}

}  // namespace
}  // namespace ithaca
