#include "worker/rank_service.h"

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/rank_test_server.h"

namespace ithaca {
namespace {

using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;
using ::testing::HasSubstr;

AttentionShape Shape() {
  AttentionShape shape;
  shape.image_tokens = 7;
  shape.text_tokens = 3;
  shape.valid_text_tokens = {2};
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 8;
  return shape;
}

// A call to a group of one, whose tensors are the caller's, cut at the border
// of image and text.
RunAttentionRequest Request(const oracle::CallInputs& inputs, uint64_t number) {
  const AttentionShape shape = Shape();
  AttentionOptions options;
  options.softmax_scale = oracle::DefaultScale(shape);
  RunAttentionRequest request;
  *request.mutable_call() =
      MakeTestCall(*MakeSequenceParallelPlan(shape, options, 1), 0);
  request.mutable_call()->set_call_number(number);
  const size_t query = 7 * 4 * 8 * 4, key = 7 * 2 * 8 * 4;
  request.set_tensors(inputs.query.substr(0, query) +
                      inputs.key.substr(0, key) + inputs.value.substr(0, key) +
                      inputs.query.substr(query) + inputs.key.substr(key) +
                      inputs.value.substr(key));
  return request;
}

class RankServiceTest : public ::testing::Test {
 protected:
  void StartSession() {
    server_.StartSession(std::make_shared<InProcessGroup>(1), 0);
  }

  grpc::Status Run(const RunAttentionRequest& request,
                   RunAttentionResponse* response) {
    return server_.Run(request, response);
  }

  void ExpectRightAnswer(uint64_t number) {
    const oracle::CallInputs inputs = oracle::RandomInputs(Shape(), number);
    RunAttentionResponse response;
    const grpc::Status status = Run(Request(inputs, number), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_LE(
        oracle::RelativeL2Error(
            oracle::Decode(DataType::kFloat32, response.output()),
            oracle::Attention(Shape(), oracle::DefaultScale(Shape()), inputs)),
        oracle::AcceptedError(DataType::kFloat32));
    EXPECT_EQ(response.execution().stage_seconds_size(), 9);
  }

  RankTestServer server_;
};

TEST_F(RankServiceTest, GeneratedClassesGetRightAnswers) {
  StartSession();
  for (uint64_t number = 1; number <= 3; ++number) ExpectRightAnswer(number);
  EXPECT_EQ(server_.reports(), 3);
  EXPECT_TRUE(server_.service()->AwaitIdle(absl::Seconds(30)));
}

TEST_F(RankServiceTest, CallsInFlightAtOnceRunByNumber) {
  StartSession();
  std::vector<std::thread> callers;
  for (uint64_t number = 8; number >= 1; --number) {
    callers.emplace_back([this, number] { ExpectRightAnswer(number); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(server_.reports(), 8);
}

TEST_F(RankServiceTest, WithoutASessionEveryGenerationIsRefused) {
  RunAttentionResponse response;
  const grpc::Status status =
      Run(Request(oracle::RandomInputs(Shape(), 1), 1), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(server_.service()->AwaitIdle(absl::ZeroDuration()));
}

TEST_F(RankServiceTest, AnotherGenerationIsRefusedNamingBoth) {
  StartSession();
  RunAttentionRequest request = Request(oracle::RandomInputs(Shape(), 1), 1);
  request.mutable_call()->set_generation(41);
  RunAttentionResponse response;
  const grpc::Status status = Run(request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("42"));
  EXPECT_THAT(status.error_message(), HasSubstr("41"));
  ExpectRightAnswer(1);
}

TEST_F(RankServiceTest, ANumberThatHasHadItsTurnIsRefused) {
  StartSession();
  ExpectRightAnswer(1);
  RunAttentionResponse response;
  EXPECT_EQ(
      Run(Request(oracle::RandomInputs(Shape(), 1), 1), &response).error_code(),
      grpc::StatusCode::INVALID_ARGUMENT);
  ExpectRightAnswer(2);
}

TEST_F(RankServiceTest, AKernelThatIsNotThereIsUnimplementedAndHarmsNothing) {
  StartSession();
  RunAttentionRequest request = Request(oracle::RandomInputs(Shape(), 1), 1);
  request.mutable_call()->set_kernel(ithaca::v1::ATTENTION_KERNEL_CUDNN);
  AttentionOptions options;
  options.softmax_scale = oracle::DefaultScale(Shape());
  options.kernel = AttentionKernelKind::kCudnn;
  request.mutable_call()->set_plan_fingerprint(
      MakeSequenceParallelPlan(Shape(), options, 1)->Fingerprint());
  RunAttentionResponse response;
  EXPECT_EQ(Run(request, &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  ExpectRightAnswer(2);
}

TEST_F(RankServiceTest, BytesThatAreNoRequestAreRefused) {
  StartSession();
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(
      server_.channel());
  grpc::Slice slice(std::string("\x12\x7f", 2));
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::ClientContext context;
  grpc::Status status;
  absl::Notification done;
  stub.UnaryCall(&context, "/ithaca.internal.v1.RankService/RunAttention", {},
                 &request, &response, [&](grpc::Status ended) {
                   status = std::move(ended);
                   done.Notify();
                 });
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(absl::Seconds(60)));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ExpectRightAnswer(1);
}

TEST(GuardedRankServiceTest, StrangersAreRefusedByEveryMethod) {
  RankTestServer server(BearerToken("secret"));
  server.StartSession(std::make_shared<InProcessGroup>(1), 0);
  const AttentionShape shape = Shape();
  const RunAttentionRequest request =
      Request(oracle::RandomInputs(shape, 1), 1);
  RunAttentionResponse response;
  EXPECT_EQ(server.Run(request, &response).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext stream_context;
  const auto stream = server.stub()->StreamAttention(&stream_context);
  internal::v1::StreamRankResponse part;
  EXPECT_FALSE(stream->Read(&part));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext attach_context, detach_context;
  internal::v1::AttachRegionResponse attached;
  EXPECT_EQ(
      server.stub()->AttachRegion(&attach_context, {}, &attached).error_code(),
      grpc::StatusCode::UNAUTHENTICATED);
  internal::v1::DetachRegionResponse detached;
  EXPECT_EQ(
      server.stub()->DetachRegion(&detach_context, {}, &detached).error_code(),
      grpc::StatusCode::UNAUTHENTICATED);

  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  const grpc::Status status =
      server.stub()->RunAttention(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace ithaca
