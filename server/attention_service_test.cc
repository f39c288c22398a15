#include "server/attention_service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "server/client_call.h"
#include "server/fake_group.h"
#include "server/group_scheduler.h"
#include "server/grpc_arguments.h"
#include "server/metrics.h"
#include "server/mock_group_manager.h"
#include "server/status_mapping.h"

namespace ithaca::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::NiceMock;
namespace v1 = ithaca::v1;

constexpr int64_t kMaxMessageBytes = 1 << 20;

// ZERO: the output is the mean of the values, base + token.
v1::AttentionRequest Request(const std::string& id, float base,
                             int64_t tokens = 4) {
  v1::AttentionRequest request;
  request.set_request_id(id);
  const auto elements = static_cast<size_t>(tokens * 2 * 4);
  std::vector<float> value;
  for (int64_t token = 0; token < tokens; ++token) {
    value.insert(value.end(), 8, base + static_cast<float>(token));
  }
  for (v1::Tensor* tensor : {request.mutable_query(), request.mutable_key(),
                             request.mutable_value()}) {
    tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const int64_t dim : {int64_t{1}, tokens, int64_t{2}, int64_t{4}}) {
      tensor->add_shape(dim);
    }
    tensor->set_data(std::string(elements * sizeof(float), '\0'));
  }
  request.mutable_value()->set_data(std::string(
      reinterpret_cast<const char*>(value.data()), elements * sizeof(float)));
  return request;
}

class AttentionServiceTest : public ::testing::Test {
 protected:
  explicit AttentionServiceTest(BearerToken token = BearerToken())
      : metrics_("test", "cpu"),
        queue_(16),
        budget_(int64_t{1} << 30),
        scheduler_(&manager_, &queue_, &metrics_, SchedulerOptions()),
        service_(&manager_, &scheduler_, &budget_, &metrics_,
                 {"test", "cpu", kMaxMessageBytes, int64_t{1} << 30,
                  std::move(token)}) {
    int port = 0;
    grpc::ServerBuilder builder;
    SetServerArguments(kMaxMessageBytes, &builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                         grpc::InsecureChannelCredentials(),
                                         arguments);
    stub_ = v1::AttentionService::NewStub(channel_);
    scheduler_.OnGroupFormed(group_.Describe("g1", 1));
    AwaitTrue([this] { return scheduler_.Ready(); });
  }

  ~AttentionServiceTest() override {
    group_.Release();
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::seconds(10));
    server_.reset();
    scheduler_.Stop();
  }

  static GroupScheduler::Options SchedulerOptions() {
    GroupScheduler::Options options;
    options.probe_interval = absl::Hours(1);
    return options;
  }

  static void AwaitTrue(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  grpc::Status Call(const v1::AttentionRequest& request,
                    v1::AttentionResponse* response = nullptr) {
    grpc::ClientContext context;
    v1::AttentionResponse dropped;
    return stub_->Attention(&context, request,
                            response == nullptr ? &dropped : response);
  }

  void ExpectRightNumbers(float base) {
    v1::AttentionResponse response;
    const grpc::Status status = Call(Request("good", base), &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ExpectMean(response, base + 1.5F);
  }

  static void ExpectMean(const v1::AttentionResponse& response, float mean) {
    const std::string& data = response.output().data();
    std::vector<float> values(data.size() / sizeof(float));
    std::memcpy(values.data(), data.data(), data.size());
    ASSERT_FALSE(values.empty());
    for (const float value : values) ASSERT_FLOAT_EQ(value, mean);
  }

  // The request is refused with this code, and the next good one is right.
  void ExpectRefused(const v1::AttentionRequest& request, grpc::StatusCode code,
                     const std::string& part) {
    const size_t calls = group_.call_numbers().size();
    const grpc::Status status = Call(request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(part));
    EXPECT_EQ(group_.call_numbers().size(), calls);
    ExpectRightNumbers(10);
  }

  double Counted(const std::string& series) {
    const std::string page = "\n" + metrics_.Serialize();
    const size_t at = page.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return std::stod(page.substr(at + series.size() + 2));
  }
  double Requests(const std::string& code) {
    return Counted("ithaca_requests_total{code=\"" + code +
                   "\",method=\"Attention\"}");
  }

  NiceMock<MockGroupManager> manager_;
  FakeGroup group_{2};
  Metrics metrics_;
  AdmissionQueue queue_;
  ByteBudget budget_;
  GroupScheduler scheduler_;
  AttentionService service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

TEST_F(AttentionServiceTest, AnswersWithTheQuerysShapeTypeAndTheReport) {
  v1::AttentionResponse response;
  const grpc::Status status = Call(Request("r1", 100), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.request_id(), "r1");
  EXPECT_EQ(response.output().dtype(), v1::DATA_TYPE_FLOAT32);
  EXPECT_THAT(response.output().shape(), ::testing::ElementsAre(1, 4, 2, 4));
  ExpectMean(response, 101.5F);
  const v1::ExecutionReport& report = response.report();
  EXPECT_EQ(report.group(), "g1");
  EXPECT_GT(report.total_seconds(), 0);
  EXPECT_GE(report.total_seconds(), report.queue_seconds());
}

TEST_F(AttentionServiceTest, ARequestWithoutAnIdGetsOne) {
  v1::AttentionResponse response;
  ASSERT_TRUE(Call(Request("", 1), &response).ok());
  EXPECT_EQ(response.request_id().size(), 32u);
}

TEST_F(AttentionServiceTest, Rank3GivesRank3) {
  v1::AttentionRequest request = Request("r", 1);
  for (v1::Tensor* tensor : {request.mutable_query(), request.mutable_key(),
                             request.mutable_value()}) {
    tensor->mutable_shape()->erase(tensor->shape().begin());
  }
  v1::AttentionResponse response;
  ASSERT_TRUE(Call(request, &response).ok());
  EXPECT_THAT(response.output().shape(), ::testing::ElementsAre(4, 2, 4));
  ExpectMean(response, 2.5F);
}

TEST_F(AttentionServiceTest, BadRequestsReachNoRankAndTheNextGoodOneIsRight) {
  v1::AttentionRequest request = Request("r", 1);
  request.mutable_query()->mutable_data()->pop_back();
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT,
                "query.data: expected 128 bytes");

  request = Request("r", 1);
  request.mutable_query()->set_shape(1, int64_t{1} << 31);
  request.mutable_query()->set_shape(2, int64_t{1} << 31);
  request.mutable_query()->set_shape(3, 128);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "query");

  request = Request("r", 1);
  request.mutable_key()->set_dtype(v1::DATA_TYPE_FLOAT16);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "key.dtype");

  request = Request(std::string(300, 'i'), 1);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "request_id");

  request = Request("r", 1);
  request.mutable_options()->set_kernel(v1::ATTENTION_KERNEL_CUDNN);
  ExpectRefused(request, grpc::StatusCode::UNIMPLEMENTED, "cudnn");

  request = Request("r", 1);
  request.mutable_output()->set_region("r");
  ExpectRefused(request, grpc::StatusCode::UNIMPLEMENTED, "output");

  EXPECT_EQ(Requests("INVALID_ARGUMENT"), 4);
  EXPECT_EQ(Requests("UNIMPLEMENTED"), 2);
  EXPECT_EQ(Counted("ithaca_in_flight_requests"), 0);
}

TEST_F(AttentionServiceTest, AMessageOverTheLimitIsResourceExhausted) {
  v1::AttentionRequest request = Request("large", 1);
  const auto length_with = [&request](size_t bytes) {
    request.mutable_query()->set_data(std::string(bytes, '\0'));
    return static_cast<int64_t>(request.ByteSizeLong());
  };
  size_t bytes = kMaxMessageBytes / 2;
  bytes += static_cast<size_t>(kMaxMessageBytes - length_with(bytes));
  while (length_with(bytes) > kMaxMessageBytes) --bytes;
  ASSERT_EQ(length_with(bytes), kMaxMessageBytes);
  // At the limit the message is read, and judged.
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "query.data");
  length_with(bytes + 1);
  ExpectRefused(request, grpc::StatusCode::RESOURCE_EXHAUSTED,
                std::to_string(kMaxMessageBytes + 1));
  EXPECT_THAT(Call(request).error_message(), HasSubstr("StreamAttention"));
  EXPECT_EQ(Requests("RESOURCE_EXHAUSTED"), 2);
  // Far over it, gRPC stops reading.
  length_with(10 * kMaxMessageBytes);
  ExpectRefused(request, grpc::StatusCode::RESOURCE_EXHAUSTED, "");
  EXPECT_EQ(Counted("ithaca_in_flight_requests"), 0);
}

TEST_F(AttentionServiceTest, ACallWithoutAMessageIsInvalid) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context,
                               "/ithaca.v1.AttentionService/Attention", &queue);
  const auto await = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
  };
  call->StartCall(nullptr);
  await();
  call->WritesDone(nullptr);
  await();
  grpc::Status status;
  call->Finish(&status, nullptr);
  await();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
      << status.error_message();
  ExpectRightNumbers(1);
}

TEST_F(AttentionServiceTest, ADuplicateIdInFlightIsRefusedAndTheFirstUnharmed) {
  group_.Hold();
  v1::AttentionResponse first_response;
  grpc::Status first;
  std::thread first_call(
      [&] { first = Call(Request("x", 100), &first_response); });
  group_.AwaitHeld(1);
  const grpc::Status second = Call(Request("x", 200));
  EXPECT_EQ(second.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(second.error_message(), HasSubstr("\"x\""));
  group_.Release();
  first_call.join();
  ASSERT_TRUE(first.ok());
  ExpectMean(first_response, 101.5F);
  // The id is free the moment its client knows of the end.
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(Call(Request("x", 1)).ok());
}

TEST_F(AttentionServiceTest, OfManyCallsAtOnceWithOneIdExactlyOneIsServed) {
  group_.Hold();
  std::vector<grpc::Status> statuses(16);
  std::vector<std::thread> calls;
  calls.reserve(16);
  for (auto& status : statuses) {
    calls.emplace_back([&] { status = Call(Request("x", 1)); });
  }
  AwaitTrue([this] { return Requests("ALREADY_EXISTS") == 15; });
  group_.Release();
  for (auto& call : calls) call.join();
  int ok = 0;
  for (const auto& status : statuses) ok += status.ok() ? 1 : 0;
  EXPECT_EQ(ok, 1);
}

TEST_F(AttentionServiceTest, ACancelledCallsIdMayBeUsedAgain) {
  group_.Hold();
  grpc::ClientContext context;
  grpc::Status status;
  std::thread call([&] {
    v1::AttentionResponse response;
    status = stub_->Attention(&context, Request("x", 1), &response);
  });
  group_.AwaitHeld(1);
  context.TryCancel();
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  AwaitTrue([this] { return Requests("CANCELLED") == 1; });
  group_.Release();
  EXPECT_TRUE(Call(Request("x", 1)).ok());
}

TEST_F(AttentionServiceTest, CallsCancelledAtAnyMomentEndOnce) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 250;
  // Cancellations fall anywhere from before a call to after it.
  const absl::Time start = absl::Now();
  for (int i = 0; i < 4; ++i) ExpectRightNumbers(1);
  const auto longest =
      static_cast<uint32_t>(absl::ToInt64Microseconds(absl::Now() - start));
  std::vector<std::thread> clients;
  clients.reserve(16);
  for (int thread = 0; thread < kThreads; ++thread) {
    clients.emplace_back([&, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      for (int i = 0; i < kCalls; ++i) {
        grpc::ClientContext context;
        v1::AttentionResponse response;
        const v1::AttentionRequest request =
            Request(std::to_string(thread), static_cast<float>(i));
        std::thread canceller([&context, delay = random() % longest] {
          absl::SleepFor(absl::Microseconds(delay));
          context.TryCancel();
        });
        const grpc::Status status =
            stub_->Attention(&context, request, &response);
        canceller.join();
        if (status.ok()) {
          ExpectMean(response, static_cast<float>(i) + 1.5F);
        } else {
          // ALREADY_EXISTS: of the call before the server has not yet heard
          // that it is cancelled.
          EXPECT_THAT(status.error_code(),
                      AnyOf(grpc::StatusCode::CANCELLED,
                            grpc::StatusCode::ALREADY_EXISTS))
              << status.error_message();
        }
      }
    });
  }
  for (auto& client : clients) client.join();
  EXPECT_TRUE(service_.AwaitIdle(absl::Now() + absl::Seconds(30)));
  AwaitTrue([this] { return budget_.reserved() == 0; });
  EXPECT_EQ(Counted("ithaca_in_flight_requests"), 0);
  EXPECT_EQ(queue_.size(), 0);
  ExpectRightNumbers(1);
}

TEST_F(AttentionServiceTest, EveryCallCountsOnceUnderItsStatus) {
  for (int i = 0; i < 3; ++i) ExpectRightNumbers(1);
  v1::AttentionRequest bad = Request("bad", 1);
  bad.mutable_query()->mutable_data()->pop_back();
  Call(bad);
  bad.mutable_value()->set_data("");
  Call(bad);

  group_.Hold();
  std::thread held([&] { Call(Request("x", 1)); });
  group_.AwaitHeld(1);
  Call(Request("x", 1));  // a duplicate
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(100));
    v1::AttentionResponse response;
    EXPECT_EQ(
        stub_->Attention(&context, Request("late", 1), &response).error_code(),
        grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  {
    grpc::ClientContext context;
    std::thread cancel([&] {
      group_.AwaitHeld(2);
      absl::SleepFor(absl::Milliseconds(50));
      context.TryCancel();
    });
    v1::AttentionResponse response;
    EXPECT_EQ(
        stub_->Attention(&context, Request("gone", 1), &response).error_code(),
        grpc::StatusCode::CANCELLED);
    cancel.join();
  }
  // The server has heard of both before the ranks answer.
  AwaitTrue([this] {
    return Requests("CANCELLED") == 1 && Requests("DEADLINE_EXCEEDED") == 1;
  });
  group_.Release();
  held.join();
  EXPECT_EQ(Requests("OK"), 4);
  EXPECT_EQ(Requests("INVALID_ARGUMENT"), 2);
  EXPECT_EQ(Requests("ALREADY_EXISTS"), 1);
  EXPECT_EQ(
      Counted("ithaca_request_duration_seconds_count{method=\"Attention\"}"),
      9);
  // Only calls that ran and were answered.
  EXPECT_EQ(Counted("ithaca_stage_duration_seconds_count{stage=\"attention\"}"),
            4);
  EXPECT_EQ(Counted("ithaca_queue_duration_seconds_count"), 4);
  EXPECT_EQ(
      Counted("ithaca_tensor_bytes_total{direction=\"out\",plane=\"unary\"}"),
      4 * 128);
  EXPECT_EQ(Counted("ithaca_in_flight_requests"), 0);
  AwaitTrue([this] { return budget_.reserved() == 0; });
}

TEST_F(AttentionServiceTest, ADeadlineThatPassesInTheQueueNeverReachesARank) {
  group_.Hold();
  std::thread first([&] { Call(Request("1", 1)); });
  std::thread second([&] { Call(Request("2", 1)); });
  group_.AwaitHeld(2);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(100));
  v1::AttentionResponse response;
  EXPECT_EQ(
      stub_->Attention(&context, Request("late", 1), &response).error_code(),
      grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitTrue([this] { return queue_.size() == 0; });
  group_.Release();
  first.join();
  second.join();
  ExpectRightNumbers(1);
  EXPECT_THAT(group_.request_ids(),
              ::testing::Not(::testing::Contains("late")));
}

TEST_F(AttentionServiceTest, ALostGroupGivesUnavailableWithARetryHint) {
  group_.Hold();
  grpc::ClientContext context;
  grpc::Status status;
  std::thread call([&] {
    v1::AttentionResponse response;
    status = stub_->Attention(&context, Request("x", 1), &response);
  });
  group_.AwaitHeld(1);
  scheduler_.OnGroupLost("g1", 1, GroupFailureReason::kWorkerLost, "killed");
  call.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(context.GetServerTrailingMetadata().count(kRetryAfterKey), 1u);
}

TEST_F(AttentionServiceTest, ServerInfoTellsLimitsKernelsAndGroups) {
  Group ready = group_.Describe("g1", 1);
  ready.state = GroupState::kReady;
  Group silent = group_.Describe("g2", 4);
  silent.state = GroupState::kReady;
  ON_CALL(manager_, Groups).WillByDefault([&] {
    return std::vector<Group>{ready, silent};
  });
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.version(), "test");
  EXPECT_EQ(info.device(), "cpu");
  EXPECT_EQ(info.max_message_bytes(), 1u << 20);
  EXPECT_EQ(info.max_request_bytes(), 1u << 30);
  EXPECT_FALSE(info.shared_memory());
  EXPECT_THAT(info.kernels(),
              ::testing::ElementsAre(v1::ATTENTION_KERNEL_MATH,
                                     v1::ATTENTION_KERNEL_FLASH));
  EXPECT_EQ(info.communication_precisions_size(), 3);
  ASSERT_EQ(info.groups_size(), 2);
  EXPECT_EQ(info.groups(0).state(), "ready");
  EXPECT_EQ(info.groups(0).world_size(), 2u);
  EXPECT_EQ(info.groups(0).workers_size(), 2);
  EXPECT_EQ(info.groups(1).state(), "failed");
}

TEST_F(AttentionServiceTest, AnUnreadableServerInfoRequestIsCounted) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  const std::string cut(1, '\x0a');  // a tag without its length
  const grpc::Slice slice(cut);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  absl::Notification done;
  stub.UnaryCall(&context, "/ithaca.v1.AttentionService/GetServerInfo",
                 grpc::StubOptions(), &request, &response,
                 [&done](const grpc::Status& status) {
                   EXPECT_EQ(status.error_code(),
                             grpc::StatusCode::INVALID_ARGUMENT);
                   done.Notify();
                 });
  done.WaitForNotification();
  EXPECT_EQ(Counted("ithaca_requests_total{code=\"INVALID_ARGUMENT\",method="
                    "\"GetServerInfo\"}"),
            1);
}

TEST_F(AttentionServiceTest, TrailingMetadataTellsThePlane) {
  grpc::ClientContext context;
  v1::AttentionResponse response;
  ASSERT_TRUE(stub_->Attention(&context, Request("r", 1), &response).ok());
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto plane = metadata.find(kPlaneKey);
  ASSERT_NE(plane, metadata.end());
  EXPECT_EQ(plane->second, "unary");
}

class GuardedAttentionServiceTest : public AttentionServiceTest {
 protected:
  GuardedAttentionServiceTest() : AttentionServiceTest(BearerToken("secret")) {}
};

TEST_F(GuardedAttentionServiceTest, ACallWithoutTheTokenIsUnauthenticated) {
  EXPECT_EQ(Call(Request("r", 1)).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext info_context;
  v1::GetServerInfoResponse info;
  EXPECT_EQ(stub_->GetServerInfo(&info_context, {}, &info).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext stream_context;
  EXPECT_EQ(stub_->StreamAttention(&stream_context)->Finish().error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Requests("UNAUTHENTICATED"), 1);

  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  v1::AttentionResponse response;
  const grpc::Status status =
      stub_->Attention(&context, Request("r", 1), &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ExpectMean(response, 2.5F);
}

TEST_F(AttentionServiceTest, AwaitsOpenCalls) {
  EXPECT_TRUE(service_.AwaitIdle(absl::Now() + absl::Seconds(30)));
  group_.Hold();
  std::thread call([&] { Call(Request("x", 1)); });
  group_.AwaitHeld(1);
  EXPECT_FALSE(service_.AwaitIdle(absl::Now()));
  group_.Release();
  EXPECT_TRUE(service_.AwaitIdle(absl::Now() + absl::Seconds(30)));
  call.join();
}

}  // namespace
}  // namespace ithaca::server
