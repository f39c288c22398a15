#include "worker/rank_service.h"

#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/fake_rank_device.h"

namespace ithaca {
namespace {

using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;
using ::testing::HasSubstr;

constexpr uint64_t kGeneration = 42;

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
  internal::v1::AttentionCall* call = request.mutable_call();
  call->set_generation(kGeneration);
  call->set_call_number(number);
  call->set_plan_fingerprint(
      MakeSequenceParallelPlan(shape, options, 1)->Fingerprint());
  call->set_dtype(ithaca::v1::DATA_TYPE_FLOAT32);
  call->set_batch(shape.batch);
  call->set_image_tokens(shape.image_tokens);
  call->set_text_tokens(shape.text_tokens);
  call->add_valid_text_tokens(shape.valid_text_tokens[0]);
  call->set_order(ithaca::v1::TOKEN_ORDER_IMAGE_FIRST);
  call->set_num_heads(shape.num_heads);
  call->set_num_kv_heads(shape.num_kv_heads);
  call->set_head_dim(shape.head_dim);
  call->set_softmax_scale(options.softmax_scale);
  call->set_communication_precision(ithaca::v1::COMMUNICATION_PRECISION_NATIVE);
  call->set_head_schedule(ithaca::v1::HEAD_SCHEDULE_AUTO);
  call->set_kernel(ithaca::v1::ATTENTION_KERNEL_AUTO);
  call->set_return_text_output(true);
  const size_t query = 7 * 4 * 8 * 4, key = 7 * 2 * 8 * 4;
  request.set_tensors(inputs.query.substr(0, query) +
                      inputs.key.substr(0, key) + inputs.value.substr(0, key) +
                      inputs.query.substr(query) + inputs.key.substr(key) +
                      inputs.value.substr(key));
  return request;
}

class RankServiceTest : public ::testing::Test {
 protected:
  RankServiceTest() : service_([this](const RankReport&) { ++reports_; }) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    channel_ = grpc::CreateChannel("127.0.0.1:" + std::to_string(port),
                                   grpc::InsecureChannelCredentials());
    stub_ = internal::v1::RankService::NewStub(channel_);
  }
  ~RankServiceTest() override {
    service_.SetSession(nullptr);
    server_->Shutdown();
  }

  void StartSession() {
    GroupSessionOptions options;
    options.open_device =
        OpenFakeRankDevice(std::make_shared<InProcessGroup>(1));
    options.buffers = &buffers_;
    GroupMembership membership;
    membership.generation = kGeneration;
    service_.SetSession(std::make_shared<GroupSession>(
        options, membership, std::make_shared<NoRendezvousStore>(),
        GroupSessionEvents{}));
  }

  grpc::Status Run(const RunAttentionRequest& request,
                   RunAttentionResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::minutes(1));
    return stub_->RunAttention(&context, request, response);
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

  std::atomic<int> reports_{0};
  HostBufferPool buffers_;
  RankService service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<internal::v1::RankService::Stub> stub_;
};

TEST_F(RankServiceTest, GeneratedClassesGetRightAnswers) {
  StartSession();
  for (uint64_t number = 1; number <= 3; ++number) ExpectRightAnswer(number);
  EXPECT_EQ(reports_, 3);
  EXPECT_TRUE(service_.AwaitIdle(absl::Seconds(30)));
}

TEST_F(RankServiceTest, CallsInFlightAtOnceRunByNumber) {
  StartSession();
  std::vector<std::thread> callers;
  for (uint64_t number = 8; number >= 1; --number) {
    callers.emplace_back([this, number] { ExpectRightAnswer(number); });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(reports_, 8);
}

TEST_F(RankServiceTest, WithoutASessionEveryGenerationIsRefused) {
  RunAttentionResponse response;
  const grpc::Status status =
      Run(Request(oracle::RandomInputs(Shape(), 1), 1), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(service_.AwaitIdle(absl::ZeroDuration()));
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
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel_);
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

}  // namespace
}  // namespace ithaca
