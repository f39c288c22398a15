// AttentionService.StreamAttention, from its client's side.

#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
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

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "server/attention_service.h"
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
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::NiceMock;
using ::testing::Not;
namespace v1 = ithaca::v1;

constexpr int64_t kMaxMessageBytes = 4 << 20;
constexpr std::array<v1::TensorRole, 3> kInputs = {
    v1::TENSOR_ROLE_QUERY, v1::TENSOR_ROLE_KEY, v1::TENSOR_ROLE_VALUE};

// A whole call, as the unary RPC takes it.
struct Shape {
  int64_t batch = 1;
  int64_t image = 4;
  int64_t text = 0;
  int64_t heads = 2;
  int64_t kv_heads = 2;
  int64_t dim = 4;
  bool text_first = false;
  bool image_queries_only = false;
};

std::string Values(size_t elements, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(elements);
  for (float& value : values) {
    value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
  }
  return std::string(reinterpret_cast<const char*>(values.data()),
                     elements * sizeof(float));
}

v1::AttentionRequest Request(const std::string& id, const Shape& shape = {}) {
  v1::AttentionRequest request;
  request.set_request_id(id);
  uint32_t seed = 1;
  for (v1::Tensor* tensor : {request.mutable_query(), request.mutable_key(),
                             request.mutable_value()}) {
    const bool is_query = seed == 1;
    const int64_t tokens =
        shape.image + (is_query && shape.image_queries_only ? 0 : shape.text);
    const int64_t heads = is_query ? shape.heads : shape.kv_heads;
    tensor->set_dtype(v1::DATA_TYPE_FLOAT32);
    for (const int64_t dim : {shape.batch, tokens, heads, shape.dim}) {
      tensor->add_shape(dim);
    }
    tensor->set_data(Values(
        static_cast<size_t>(shape.batch * tokens * heads * shape.dim), seed++));
  }
  v1::SequenceLayout* const layout = request.mutable_layout();
  layout->set_text_tokens(shape.text);
  layout->set_image_queries_only(shape.image_queries_only);
  if (shape.text_first) layout->set_order(v1::TOKEN_ORDER_TEXT_FIRST);
  return request;
}

// 16 MiB a tensor and little to compute.
Shape LargeShape() {
  Shape shape;
  shape.heads = shape.kv_heads = 4096;
  shape.dim = 256;
  return shape;
}

// One stream from its client's side.
class Stream {
 public:
  Stream(v1::AttentionService::Stub* stub, v1::AttentionRequest whole,
         absl::Time deadline = absl::InfiniteFuture())
      : whole_(std::move(whole)) {
    context_.set_deadline(absl::ToChronoTime(deadline));
    stream_ = stub->StreamAttention(&context_);
  }
  // A client that goes away.
  ~Stream() {
    if (ended_) return;
    context_.TryCancel();
    Finish();
  }

  grpc::ClientContext& context() { return context_; }

  const std::string& data(v1::TensorRole role) const {
    return role == v1::TENSOR_ROLE_QUERY ? whole_.query().data()
           : role == v1::TENSOR_ROLE_KEY ? whole_.key().data()
                                         : whole_.value().data();
  }

  bool SendRequest() {
    v1::StreamAttentionRequest part;
    *part.mutable_request() = whole_;
    for (v1::Tensor* tensor : {part.mutable_request()->mutable_query(),
                               part.mutable_request()->mutable_key(),
                               part.mutable_request()->mutable_value()}) {
      tensor->clear_data();
    }
    return Send(part);
  }
  bool Send(const v1::StreamAttentionRequest& part) {
    return stream_->Write(part);
  }
  bool SendChunk(v1::TensorRole role, uint64_t offset,
                 const std::string& data) {
    v1::StreamAttentionRequest part;
    part.mutable_chunk()->set_role(role);
    part.mutable_chunk()->set_offset(offset);
    part.mutable_chunk()->set_data(data);
    return Send(part);
  }
  bool SendTensor(v1::TensorRole role, size_t chunk = 1 << 20) {
    const std::string& whole = data(role);
    for (size_t at = 0; at < whole.size(); at += chunk) {
      if (!SendChunk(role, at, whole.substr(at, chunk))) return false;
    }
    return true;
  }
  // All that a good client sends.
  bool SendAll(size_t chunk = 1 << 20) {
    bool sent = SendRequest();
    for (const auto role : kInputs) sent = sent && SendTensor(role, chunk);
    return sent && HalfClose();
  }
  bool HalfClose() { return stream_->WritesDone(); }

  bool Read(v1::StreamAttentionResponse* part) { return stream_->Read(part); }
  // All that a good server sends, up to the status.
  grpc::Status ReadAll() {
    v1::StreamAttentionResponse part;
    while (Read(&part)) {
      if (part.has_response()) {
        EXPECT_TRUE(output.empty());
        EXPECT_EQ(part.response().output().source_case(),
                  v1::Tensor::SOURCE_NOT_SET);
        response = part.response();
        continue;
      }
      EXPECT_EQ(part.chunk().role(), v1::TENSOR_ROLE_OUTPUT);
      EXPECT_EQ(part.chunk().offset(), output.size());
      EXPECT_LE(part.chunk().data().size(), 1u << 20);
      output += part.chunk().data();
    }
    return Finish();
  }
  grpc::Status Finish() {
    ended_ = true;
    v1::StreamAttentionResponse part;
    while (stream_->Read(&part)) {
    }
    return stream_->Finish();
  }

  v1::AttentionResponse response;
  std::string output;

 private:
  const v1::AttentionRequest whole_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::StreamAttentionRequest,
                                           v1::StreamAttentionResponse>>
      stream_;
  bool ended_ = false;
};

class StreamAttentionTest : public ::testing::Test {
 protected:
  explicit StreamAttentionTest(
      absl::Duration idle_timeout = absl::Seconds(60),
      absl::Duration collective_timeout = absl::Seconds(30))
      : metrics_("test", "cpu"),
        queue_(4),
        budget_(int64_t{1} << 30),
        scheduler_(&manager_, &queue_, &metrics_,
                   SchedulerOptions(collective_timeout)),
        service_(&manager_, &scheduler_, &budget_, &metrics_,
                 ServiceOptions(idle_timeout, collective_timeout)) {
    ON_CALL(manager_, ReportFailure)
        .WillByDefault([this](std::string_view name, uint64_t generation,
                              GroupFailureReason reason,
                              std::string_view message) {
          scheduler_.OnGroupLost(name, generation, reason, message);
        });
    int port = 0;
    grpc::ServerBuilder builder;
    SetServerArguments(kMaxMessageBytes, &builder);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    // A client's connection takes nothing that the client does not read.
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    stub_ = v1::AttentionService::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(),
        arguments));
    scheduler_.OnGroupFormed(group_.Describe("g1", 1));
    AwaitTrue([this] { return scheduler_.Ready(); });
  }

  ~StreamAttentionTest() override {
    group_.Release();
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::seconds(10));
    server_.reset();
    scheduler_.Stop();
  }

  static GroupScheduler::Options SchedulerOptions(
      absl::Duration collective_timeout) {
    GroupScheduler::Options options;
    options.probe_interval = absl::Hours(1);
    options.collective_timeout = collective_timeout;
    return options;
  }

  static AttentionService::Options ServiceOptions(
      absl::Duration idle_timeout, absl::Duration collective_timeout) {
    AttentionService::Options options;
    options.version = "test";
    options.device = "cpu";
    options.max_message_bytes = kMaxMessageBytes;
    options.max_request_bytes = int64_t{1} << 30;
    options.stream_idle_timeout = idle_timeout;
    options.rank_timeout = collective_timeout;
    return options;
  }

  static void AwaitTrue(const std::function<bool()>& condition) {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline);
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  std::unique_ptr<Stream> Open(const std::string& id, const Shape& shape = {}) {
    return std::make_unique<Stream>(stub_.get(), Request(id, shape));
  }

  std::string Unary(const v1::AttentionRequest& request) {
    grpc::ClientContext context;
    v1::AttentionResponse response;
    const grpc::Status status = stub_->Attention(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.output().data();
  }

  void ExpectAGoodCallIsRight() {
    const auto stream = Open("good");
    ASSERT_TRUE(stream->SendAll());
    const grpc::Status status = stream->ReadAll();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(stream->output, Unary(Request("good too")));
  }

  void ExpectNothingIsLeft() {
    AwaitTrue([this] { return budget_.reserved() == 0; });
    AwaitTrue([this] { return group_.open_streams() == 0; });
    EXPECT_EQ(queue_.size(), 0);
    EXPECT_TRUE(service_.AwaitIdle(absl::Now() + absl::Seconds(30)));
    EXPECT_EQ(Counted("ithaca_in_flight_requests"), 0);
  }

  // The stream has sent what is wrong with it.
  void ExpectRefused(Stream* stream, grpc::StatusCode code,
                     const std::vector<std::string>& parts) {
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    for (const std::string& part : parts) {
      EXPECT_THAT(status.error_message(), HasSubstr(part));
    }
    ExpectNothingIsLeft();
  }

  double Counted(const std::string& series) {
    const std::string page = "\n" + metrics_.Serialize();
    const size_t at = page.find("\n" + series + " ");
    EXPECT_NE(at, std::string::npos) << series;
    return std::stod(page.substr(at + series.size() + 2));
  }
  double Requests(const std::string& code) {
    return Counted("ithaca_requests_total{code=\"" + code +
                   "\",method=\"StreamAttention\"}");
  }

  NiceMock<MockGroupManager> manager_;
  FakeGroup group_{2};
  Metrics metrics_;
  AdmissionQueue queue_;
  ByteBudget budget_;
  GroupScheduler scheduler_;
  AttentionService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::AttentionService::Stub> stub_;
};

TEST_F(StreamAttentionTest, GivesTheSameBytesAsTheUnaryCall) {
  Shape batch, text, text_first, grouped, image_queries, few, only_text;
  batch.batch = 2;
  batch.image = 7;
  text.batch = 2;
  text.image = 5;
  text.text = 3;
  text_first = text;
  text_first.text_first = true;
  grouped = text_first;
  grouped.heads = 4;
  grouped.kv_heads = 1;
  image_queries = text;
  image_queries.image_queries_only = true;
  few = text;
  few.image = 1;
  only_text.image = 0;
  only_text.text = 3;
  for (const Shape& shape : {Shape(), batch, text, text_first, grouped,
                             image_queries, few, only_text}) {
    const v1::AttentionRequest whole = Request("r", shape);
    const std::string expected = Unary(whole);
    for (const size_t chunk : {7, 64, 1 << 20}) {
      Stream stream(stub_.get(), whole);
      ASSERT_TRUE(stream.SendAll(chunk));
      const grpc::Status status = stream.ReadAll();
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(stream.output, expected);
      EXPECT_EQ(stream.response.request_id(), "r");
      EXPECT_EQ(stream.response.output().dtype(), v1::DATA_TYPE_FLOAT32);
      EXPECT_THAT(stream.response.output().shape(),
                  ::testing::ElementsAreArray(whole.query().shape()));
    }
  }
  ExpectNothingIsLeft();
}

TEST_F(StreamAttentionTest, TensorsMayAlternateAndTheClientNeedNotHalfClose) {
  const auto stream = Open("r");
  ASSERT_TRUE(stream->SendRequest());
  for (const size_t at : {0, 50, 100}) {
    for (const auto role : kInputs) {
      ASSERT_TRUE(
          stream->SendChunk(role, at, stream->data(role).substr(at, 50)));
    }
  }
  const grpc::Status status = stream->ReadAll();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stream->output, Unary(Request("s")));
}

TEST_F(StreamAttentionTest, ReportsAsTheUnaryCallDoesAndTellsThePlane) {
  const auto stream = Open("r1");
  ASSERT_TRUE(stream->SendAll());
  ASSERT_TRUE(stream->ReadAll().ok());
  const v1::ExecutionReport& report = stream->response.report();
  EXPECT_EQ(report.group(), "g1");
  EXPECT_EQ(report.world_size(), 2u);
  EXPECT_GT(report.total_seconds(), 0);
  EXPECT_EQ(report.communication_bytes(), 101u);
  EXPECT_DOUBLE_EQ(report.stage_seconds().at("attention"), 0.002);
  const auto& metadata = stream->context().GetServerTrailingMetadata();
  const auto plane = metadata.find(kPlaneKey);
  ASSERT_NE(plane, metadata.end());
  EXPECT_EQ(plane->second, "stream");
  ExpectNothingIsLeft();
  EXPECT_EQ(Requests("OK"), 1);
  EXPECT_EQ(
      Counted("ithaca_tensor_bytes_total{direction=\"in\",plane=\"stream\"}"),
      3 * 128);
  EXPECT_EQ(
      Counted("ithaca_tensor_bytes_total{direction=\"out\",plane=\"stream\"}"),
      128);
  EXPECT_EQ(Counted("ithaca_stage_duration_seconds_count{stage=\"attention\"}"),
            1);
}

TEST_F(StreamAttentionTest, TensorsLargerThanAMessageTravel) {
  const auto stream = Open("large", LargeShape());
  std::thread sender([&] { EXPECT_TRUE(stream->SendAll()); });
  const grpc::Status status = stream->ReadAll();
  sender.join();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stream->output.size(), 16u << 20);
  ExpectNothingIsLeft();
}

TEST_F(StreamAttentionTest, BadStreamsAreRefusedAndTheNextGoodOneIsRight) {
  const auto refused = [this](const std::function<void(Stream*)>& send,
                              const std::vector<std::string>& parts) {
    const size_t calls = group_.call_numbers().size();
    const auto stream = Open("bad");
    send(stream.get());
    ExpectRefused(stream.get(), grpc::StatusCode::INVALID_ARGUMENT, parts);
    EXPECT_EQ(group_.call_numbers().size(), calls);
    ExpectAGoodCallIsRight();
  };
  refused([](Stream* s) { s->HalfClose(); }, {"`request`"});
  refused([](Stream* s) { s->SendChunk(kInputs[0], 0, "x"); }, {"`request`"});
  refused([](Stream* s) { s->Send({}); }, {"`request`"});
  refused(
      [](Stream* s) {
        s->SendRequest();
        s->SendRequest();
      },
      {"`chunk`"});
  refused(
      [](Stream* s) {
        s->SendRequest();
        s->SendChunk(v1::TENSOR_ROLE_OUTPUT, 0, "x");
      },
      {"role", "TENSOR_ROLE_OUTPUT"});
  refused(
      [](Stream* s) {
        s->SendRequest();
        s->SendChunk(v1::TENSOR_ROLE_KEY, 64, std::string(8, 'x'));
      },
      {"key", "expected offset 0", "got 64"});
  refused(
      [](Stream* s) {
        s->SendRequest();
        s->SendChunk(v1::TENSOR_ROLE_KEY, 0, std::string(64, 'x'));
        s->SendChunk(v1::TENSOR_ROLE_KEY, 32, std::string(64, 'x'));
      },
      {"key", "expected offset 64", "got 32"});
  refused(
      [](Stream* s) {
        s->SendRequest();
        s->SendChunk(v1::TENSOR_ROLE_VALUE, 0, std::string(129, 'x'));
      },
      {"value", "at most 128 bytes", "got 129"});
  refused(
      [](Stream* s) {
        s->SendRequest();
        s->SendTensor(v1::TENSOR_ROLE_QUERY);
        s->SendTensor(v1::TENSOR_ROLE_KEY);
        s->SendChunk(v1::TENSOR_ROLE_VALUE, 0, std::string(100, 'x'));
        s->HalfClose();
      },
      {"value", "128 bytes, got 100"});
  refused(
      [](Stream* s) {
        v1::StreamAttentionRequest part;
        *part.mutable_request() = Request("bad");
        s->Send(part);
      },
      {"query.data", "128 bytes"});
  refused(
      [](Stream* s) {
        v1::StreamAttentionRequest part;
        *part.mutable_request() = Request("bad");
        part.mutable_request()->mutable_key()->set_dtype(
            v1::DATA_TYPE_BFLOAT16);
        s->Send(part);
      },
      {"key.dtype"});
  EXPECT_EQ(Requests("INVALID_ARGUMENT"), 11);
}

TEST_F(StreamAttentionTest, AChunkAfterTheEndIsRefusedAndTheGroupStays) {
  group_.Hold();
  const auto stream = Open("long");
  ASSERT_TRUE(stream->SendRequest());
  for (const auto role : kInputs) ASSERT_TRUE(stream->SendTensor(role));
  group_.AwaitHeld(1);
  stream->SendChunk(v1::TENSOR_ROLE_VALUE, 128, "x");
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("value"));
  group_.Release();
  ExpectNothingIsLeft();
  ExpectAGoodCallIsRight();
}

TEST_F(StreamAttentionTest, AStreamOverABudgetIsRefusedAtOnce) {
  v1::AttentionRequest request = Request("r");
  for (v1::Tensor* tensor : {request.mutable_query(), request.mutable_key(),
                             request.mutable_value()}) {
    tensor->set_shape(1, int64_t{1} << 30);
  }
  Stream stream(stub_.get(), request);
  ASSERT_TRUE(stream.SendRequest());
  ExpectRefused(&stream, grpc::StatusCode::RESOURCE_EXHAUSTED,
                {"the request's tensors"});
}

TEST_F(StreamAttentionTest, AnIdInFlightIsRefusedWhicheverWayItCame) {
  const auto first = Open("x");
  ASSERT_TRUE(first->SendRequest());
  AwaitTrue([this] { return budget_.reserved() == 512; });
  const auto second = Open("x");
  ASSERT_TRUE(second->SendRequest());
  EXPECT_EQ(second->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  grpc::ClientContext context;
  v1::AttentionResponse response;
  EXPECT_EQ(stub_->Attention(&context, Request("x"), &response).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  for (const auto role : kInputs) ASSERT_TRUE(first->SendTensor(role));
  EXPECT_TRUE(first->ReadAll().ok());
}

TEST_F(StreamAttentionTest, SlowSendersHoldUpNobody) {
  // More than a group has slots.
  std::vector<std::unique_ptr<Stream>> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(Open(std::to_string(i)));
    ASSERT_TRUE(slow.back()->SendRequest());
    ASSERT_TRUE(slow.back()->SendTensor(v1::TENSOR_ROLE_QUERY));
  }
  AwaitTrue([this] { return group_.open_streams() == 8; });
  const std::string expected = Unary(Request("unary"));
  // As many as may queue are bound.
  const auto fifth = Open("fifth");
  ASSERT_TRUE(fifth->SendRequest());
  EXPECT_EQ(fifth->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(fifth->context().GetServerTrailingMetadata().count(kRetryAfterKey),
            1u);
  for (auto& stream : slow) {
    ASSERT_TRUE(stream->SendTensor(v1::TENSOR_ROLE_KEY));
    ASSERT_TRUE(stream->SendTensor(v1::TENSOR_ROLE_VALUE));
    EXPECT_TRUE(stream->ReadAll().ok());
    EXPECT_EQ(stream->output, expected);
  }
  ExpectNothingIsLeft();
}

TEST_F(StreamAttentionTest, SlowReadersHoldUpNobody) {
  std::vector<std::unique_ptr<Stream>> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(Open(std::to_string(i), LargeShape()));
    ASSERT_TRUE(slow.back()->SendAll());
  }
  AwaitTrue([this] { return group_.request_ids().size() == 3; });
  Unary(Request("unary"));
  // Their bytes count until they are taken.
  EXPECT_EQ(budget_.reserved(), int64_t{3} * 4 * (16 << 20));
  for (auto& stream : slow) {
    ASSERT_TRUE(stream->ReadAll().ok());
    EXPECT_EQ(stream->output, slow[0]->output);
    EXPECT_EQ(stream->output.size(), 16u << 20);
  }
  ExpectNothingIsLeft();
}

TEST_F(StreamAttentionTest, WhatRanksDoNotTakeIsNotReadFromTheClient) {
  group_.SetStreamReads(0, false);
  const auto stream = Open("r", LargeShape());
  std::atomic<size_t> sent{0};
  std::thread sender([&] {
    EXPECT_TRUE(stream->SendRequest());
    for (const auto role : kInputs) {
      const std::string& data = stream->data(role);
      for (size_t at = 0; at < data.size(); at += 1 << 18) {
        EXPECT_TRUE(stream->SendChunk(role, at, data.substr(at, 1 << 18)));
        sent += 1 << 18;
      }
    }
  });
  AwaitTrue([&] { return sent >= 1 << 20; });
  absl::SleepFor(absl::Milliseconds(300));
  // The window, and what connections hold; of 48 MiB.
  EXPECT_LT(sent, 24u << 20);
  Unary(Request("unary"));
  group_.SetStreamReads(0, true);
  sender.join();
  EXPECT_TRUE(stream->ReadAll().ok());
  ExpectNothingIsLeft();
}

TEST_F(StreamAttentionTest, WhatTheClientDoesNotReadIsNotReadFromRanks) {
  // 16 MiB of output from either rank, which take turns, and little to compute.
  Shape shape;
  shape.batch = 4;
  shape.image = 2;
  shape.heads = 4096;
  shape.kv_heads = 1;
  shape.dim = 256;
  const auto stream = Open("r", shape);
  ASSERT_TRUE(stream->SendAll());
  v1::StreamAttentionResponse part;
  ASSERT_TRUE(stream->Read(&part));
  ASSERT_TRUE(part.has_response());
  absl::SleepFor(absl::Milliseconds(300));
  // A rank's stream ends with its output: what is read ahead, and what
  // connections hold, is less than that.
  EXPECT_EQ(group_.open_streams(), 2u);
  Unary(Request("unary"));
  EXPECT_TRUE(stream->ReadAll().ok());
  EXPECT_EQ(stream->output.size(), 32u << 20);
  ExpectNothingIsLeft();
}

TEST_F(StreamAttentionTest, CancelledInAnyPhaseACallLeavesNothingBehind) {
  const auto cancel = [this](Stream* stream) {
    stream->context().TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  };
  auto stream = Open("before its request");
  cancel(stream.get());

  stream = Open("uploading");
  stream->SendRequest();
  stream->SendTensor(v1::TENSOR_ROLE_KEY);
  AwaitTrue([this] { return group_.streamed_bytes() == 128; });
  cancel(stream.get());
  ExpectNothingIsLeft();

  group_.Hold();
  std::vector<std::thread> unary;
  for (int i = 0; i < 2; ++i) {
    unary.emplace_back([this, i] { Unary(Request(std::to_string(i))); });
  }
  group_.AwaitHeld(2);
  stream = Open("queued");
  stream->SendAll();
  AwaitTrue([this] { return queue_.size() == 1; });
  cancel(stream.get());
  AwaitTrue([this] { return group_.open_streams() == 0; });
  EXPECT_EQ(queue_.size(), 0);
  group_.Release();
  for (auto& call : unary) call.join();

  group_.Hold();
  stream = Open("running");
  stream->SendAll();
  group_.AwaitHeld(1);
  cancel(stream.get());
  AwaitTrue([this] { return Requests("CANCELLED") == 4; });
  // The ranks finish what they entered.
  EXPECT_EQ(group_.open_streams(), 2u);
  group_.Release();
  ExpectNothingIsLeft();

  stream = Open("answering", LargeShape());
  stream->SendAll();
  v1::StreamAttentionResponse part;
  ASSERT_TRUE(stream->Read(&part));
  cancel(stream.get());
  ExpectNothingIsLeft();

  EXPECT_EQ(Requests("CANCELLED"), 5);
  const auto ids = group_.request_ids();
  EXPECT_THAT(ids, Not(Contains("uploading")));
  EXPECT_THAT(ids, Not(Contains("queued")));
  EXPECT_THAT(ids, Contains("running"));
  ExpectAGoodCallIsRight();
}

TEST_F(StreamAttentionTest, ADeadlineEndsACallInTheMiddleOfItsUpload) {
  Stream stream(stub_.get(), Request("late"),
                absl::Now() + absl::Milliseconds(200));
  ASSERT_TRUE(stream.SendRequest());
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  AwaitTrue([this] { return Requests("DEADLINE_EXCEEDED") == 1; });
  EXPECT_THAT(group_.request_ids(), Not(Contains("late")));
}

TEST_F(StreamAttentionTest, StreamsCancelledAtAnyMomentEndOnce) {
  constexpr int kThreads = 4;
  constexpr int kCalls = 100;
  const absl::Time start = absl::Now();
  for (int i = 0; i < 4; ++i) ExpectAGoodCallIsRight();
  const auto longest =
      static_cast<uint32_t>(absl::ToInt64Microseconds(absl::Now() - start) / 2);
  const std::string expected = Unary(Request("unary"));
  std::vector<std::thread> clients;
  clients.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    clients.emplace_back([&, thread] {
      std::mt19937 random(static_cast<uint32_t>(thread));
      for (int i = 0; i < kCalls; ++i) {
        Stream stream(stub_.get(),
                      Request(std::to_string(thread * kCalls + i)));
        std::thread canceller([&stream, delay = random() % longest] {
          absl::SleepFor(absl::Microseconds(delay));
          stream.context().TryCancel();
        });
        stream.SendAll(100);
        const grpc::Status status = stream.ReadAll();
        canceller.join();
        if (status.ok()) {
          EXPECT_EQ(stream.output, expected);
        } else {
          // More may be bound for a moment than may queue.
          EXPECT_THAT(status.error_code(),
                      AnyOf(grpc::StatusCode::CANCELLED,
                            grpc::StatusCode::RESOURCE_EXHAUSTED))
              << status.error_message();
        }
      }
    });
  }
  for (auto& client : clients) client.join();
  ExpectNothingIsLeft();
  ExpectAGoodCallIsRight();
}

TEST_F(StreamAttentionTest, ALostGroupEndsItsStreamsBeforeTheyAreAnswered) {
  group_.Hold();
  const auto uploading = Open("uploading");
  uploading->SendRequest();
  std::vector<std::unique_ptr<Stream>> streams;
  for (const std::string id : {"running", "behind", "queued"}) {
    streams.push_back(Open(id));
    streams.back()->SendAll();
  }
  group_.AwaitHeld(2);
  AwaitTrue([this] { return queue_.size() == 1; });
  AwaitTrue([this] { return group_.open_streams() == 8; });
  // Inputs that a group has cannot be had by another.
  FakeGroup other(2);
  scheduler_.OnGroupFormed(other.Describe("g2", 1));
  AwaitTrue([this] { return scheduler_.Ready("g2", 1); });
  scheduler_.OnGroupLost("g1", 1, GroupFailureReason::kWorkerLost, "killed");
  const auto expect_unavailable = [](Stream* stream) {
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("killed"));
    EXPECT_EQ(
        stream->context().GetServerTrailingMetadata().count(kRetryAfterKey),
        1u);
  };
  expect_unavailable(uploading.get());
  for (auto& stream : streams) expect_unavailable(stream.get());
  group_.Release();
  ExpectNothingIsLeft();
  ExpectAGoodCallIsRight();
  scheduler_.OnGroupLost("g2", 1, GroupFailureReason::kWorkerLost, "killed");
  AwaitTrue([&other] { return other.open_streams() == 0; });
}

TEST_F(StreamAttentionTest, AnAnswerOutlivesItsGroupIfItsRanksDo) {
  group_.SetStreamWrites(-1, false);
  const auto stream = Open("r");
  ASSERT_TRUE(stream->SendAll());
  v1::StreamAttentionResponse part;
  ASSERT_TRUE(stream->Read(&part));
  scheduler_.OnGroupLost("g1", 1, GroupFailureReason::kWorkerLost, "killed");
  group_.SetStreamWrites(-1, true);
  EXPECT_TRUE(stream->ReadAll().ok());
  EXPECT_EQ(stream->output.size(), 128u);
}

TEST_F(StreamAttentionTest, AnAnswerThatARankCannotFinishIsUnavailable) {
  group_.SetStreamWrites(1, false);
  const auto stream = Open("r");
  ASSERT_TRUE(stream->SendAll());
  v1::StreamAttentionResponse part;
  ASSERT_TRUE(stream->Read(&part));
  group_.BreakStreams(1, {grpc::StatusCode::UNAVAILABLE, "killed"});
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("rank 1"));
  ExpectNothingIsLeft();
  EXPECT_TRUE(scheduler_.Ready());
}

TEST_F(StreamAttentionTest, ARankThatBreaksOffTheUploadEndsTheCallOnly) {
  const auto stream = Open("r");
  stream->SendRequest();
  AwaitTrue([this] { return group_.open_streams() == 2; });
  group_.BreakStreams(0, {grpc::StatusCode::INTERNAL, "out of place"});
  ExpectRefused(stream.get(), grpc::StatusCode::INTERNAL,
                {"rank 0", "out of place"});
  ExpectAGoodCallIsRight();
}

TEST_F(StreamAttentionTest, ARefusalOfAllRanksReachesTheClient) {
  group_.RefuseNext({grpc::StatusCode::RESOURCE_EXHAUSTED, "no memory"});
  const auto stream = Open("r");
  ASSERT_TRUE(stream->SendAll());
  ExpectRefused(stream.get(), grpc::StatusCode::RESOURCE_EXHAUSTED,
                {"no memory"});
  EXPECT_EQ(stream->context().GetServerTrailingMetadata().count(kRetryAfterKey),
            1u);
  ExpectAGoodCallIsRight();
}

TEST_F(StreamAttentionTest, ADrainLetsStreamsThatHaveBegunFinish) {
  const auto begun = Open("begun");
  begun->SendRequest();
  AwaitTrue([this] { return group_.open_streams() == 2; });
  scheduler_.Drain();
  const auto late = Open("late");
  late->SendRequest();
  EXPECT_EQ(late->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  for (const auto role : kInputs) ASSERT_TRUE(begun->SendTensor(role));
  EXPECT_TRUE(begun->ReadAll().ok());
  ExpectNothingIsLeft();
}

class ImpatientStreamAttentionTest : public StreamAttentionTest {
 protected:
  ImpatientStreamAttentionTest()
      : StreamAttentionTest(absl::Milliseconds(600)) {}
};

TEST_F(ImpatientStreamAttentionTest, AClientThatSendsNothingLosesItsCall) {
  const auto silent = Open("silent");
  ExpectRefused(silent.get(), grpc::StatusCode::DEADLINE_EXCEEDED,
                {"`request`", "stream-idle-timeout"});
  const auto stream = Open("uploading");
  stream->SendRequest();
  stream->SendTensor(v1::TENSOR_ROLE_QUERY);
  ExpectRefused(stream.get(), grpc::StatusCode::DEADLINE_EXCEEDED,
                {"chunk", "stream-idle-timeout"});
  ExpectAGoodCallIsRight();
}

TEST_F(ImpatientStreamAttentionTest, AClientThatDoesNotReadLosesItsCall) {
  const auto stream = Open("r", LargeShape());
  ASSERT_TRUE(stream->SendAll());
  AwaitTrue([this] { return Requests("DEADLINE_EXCEEDED") == 1; });
  AwaitTrue([this] { return budget_.reserved() == 0; });
  // It reads on before it is cut off, and learns why there is no more.
  ExpectRefused(stream.get(), grpc::StatusCode::DEADLINE_EXCEEDED,
                {"did not take its output", "stream-idle-timeout"});
}

TEST_F(ImpatientStreamAttentionTest, AWaitInTheQueueIsNotTheClientsIdleness) {
  group_.Hold();
  const auto stream = Open("r");
  ASSERT_TRUE(stream->SendAll());
  group_.AwaitHeld(1);
  absl::SleepFor(absl::Milliseconds(1200));
  group_.Release();
  EXPECT_TRUE(stream->ReadAll().ok());
}

class StuckStreamAttentionTest : public StreamAttentionTest {
 protected:
  StuckStreamAttentionTest()
      : StreamAttentionTest(absl::Seconds(60), absl::Milliseconds(400)) {}
};

TEST_F(StuckStreamAttentionTest, ARunThatOutlastsItsLimitLosesTheGroup) {
  group_.Hold();
  const auto stream = Open("r");
  ASSERT_TRUE(stream->SendAll());
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("in time"));
  AwaitTrue([this] {
    return Counted("ithaca_group_failures_total{reason=\"call_timeout\"}") == 1;
  });
  group_.Release();
  ExpectNothingIsLeft();
}

TEST_F(StuckStreamAttentionTest, RanksThatTakeNothingEndTheCall) {
  group_.SetStreamReads(-1, false);
  const auto stream = Open("r", LargeShape());
  std::thread sender([&] { stream->SendAll(); });
  const grpc::Status status = stream->ReadAll();
  sender.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("no progress"));
  ExpectNothingIsLeft();
}

TEST_F(StuckStreamAttentionTest, ARankThatGivesNoOutputEndsTheCall) {
  group_.SetStreamWrites(0, false);
  const auto stream = Open("r");
  ASSERT_TRUE(stream->SendAll());
  const grpc::Status status = stream->ReadAll();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  ExpectNothingIsLeft();
}

}  // namespace
}  // namespace ithaca::server
