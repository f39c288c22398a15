#include "worker/rank_stream.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/call_tensors.h"
#include "worker/rank_test_server.h"

namespace ithaca {
namespace {

using internal::v1::AttentionCall;
using internal::v1::RankRefusal;
using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;
using internal::v1::StreamRankRequest;
using internal::v1::StreamRankResponse;
using ::testing::HasSubstr;

AttentionShape Shape(int64_t batch = 1) {
  AttentionShape shape;
  shape.batch = batch;
  shape.image_tokens = 7;
  shape.text_tokens = 3;
  shape.valid_text_tokens.assign(static_cast<size_t>(batch), 2);
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 8;
  return shape;
}

SequenceParallelPlan Plan(const AttentionShape& shape, int world_size) {
  AttentionOptions options;
  options.softmax_scale = oracle::DefaultScale(shape);
  return *MakeSequenceParallelPlan(shape, options, world_size);
}

// Tokens [first, first + count) of each batch element of a tensor.
std::string Tokens(const AttentionShape& shape, const std::string& tensor,
                   int64_t first, int64_t count) {
  const size_t element = tensor.size() / static_cast<size_t>(shape.batch);
  const int64_t tokens =
      tensor.size() == static_cast<size_t>(oracle::QueryElements(shape) * 4)
          ? shape.query_tokens()
          : shape.key_tokens();
  const size_t row = element / static_cast<size_t>(tokens);
  std::string bytes;
  for (int64_t b = 0; b < shape.batch; ++b) {
    bytes += tensor.substr(
        static_cast<size_t>(b) * element + static_cast<size_t>(first) * row,
        static_cast<size_t>(count) * row);
  }
  return bytes;
}

// What RunAttentionRequest.tensors holds.
std::string RankTensors(const SequenceParallelPlan& plan,
                        const oracle::CallInputs& inputs, int rank) {
  const AttentionShape& shape = plan.shape;
  const Range share = plan.ranks[static_cast<size_t>(rank)].image_tokens;
  const bool text_first = shape.order == TokenOrder::kTextFirst;
  const int64_t image = text_first ? shape.text_tokens : 0;
  const int64_t text = text_first ? 0 : shape.image_tokens;
  std::string tensors;
  for (const std::string* tensor :
       {&inputs.query, &inputs.key, &inputs.value}) {
    tensors += Tokens(shape, *tensor, image + share.begin, share.size);
  }
  for (const std::string* tensor :
       {&inputs.query, &inputs.key, &inputs.value}) {
    tensors += Tokens(shape, *tensor, text, shape.text_tokens);
  }
  return tensors;
}

using Stream = grpc::ClientReaderWriter<StreamRankRequest, StreamRankResponse>;

// One StreamAttention of a client that uses the generated classes.
struct Call {
  explicit Call(RankTestServer* server) {
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::minutes(1));
    stream = server->stub()->StreamAttention(&context);
  }
  Call(RankTestServer* server, const AttentionCall& call) : Call(server) {
    Open(call);
  }

  void Open(const AttentionCall& call) {
    StreamRankRequest request;
    *request.mutable_open() = call;
    stream->Write(request);
  }

  void Chunk(uint64_t offset, const std::string& data) {
    StreamRankRequest request;
    request.mutable_chunk()->set_offset(offset);
    request.mutable_chunk()->set_data(data);
    stream->Write(request);
  }
  // In chunks of `size` bytes, from the last to the first.
  void Chunks(const std::string& data, size_t size) {
    const size_t count = (data.size() + size - 1) / size;
    for (size_t i = count; i-- > 0;)
      Chunk(i * size, data.substr(i * size, size));
  }
  void Run(uint64_t number) {
    StreamRankRequest request;
    request.mutable_run()->set_call_number(number);
    stream->Write(request);
  }
  // Reads to the end: the whole output, and the sizes of its chunks.
  grpc::Status Finish() {
    StreamRankResponse response;
    while (stream->Read(&response)) {
      if (response.has_execution()) {
        EXPECT_EQ(chunks.size(), 0u);
        ++executions;
      } else {
        EXPECT_EQ(response.chunk().offset(), output.size());
        output += response.chunk().data();
        chunks.push_back(response.chunk().data().size());
      }
    }
    return stream->Finish();
  }

  grpc::ClientContext context;
  std::unique_ptr<Stream> stream;
  std::string output;
  std::vector<size_t> chunks;
  int executions = 0;
};

class RankStreamTest : public ::testing::Test {
 protected:
  void Start(int world_size) {
    group_ = std::make_shared<InProcessGroup>(world_size);
    for (int rank = 0; rank < world_size; ++rank) {
      servers_.push_back(std::make_unique<RankTestServer>());
      servers_.back()->StartSession(group_, rank);
    }
  }
  RankTestServer* server(int rank) {
    return servers_[static_cast<size_t>(rank)].get();
  }

  // A unary call to every rank goes well.
  void ExpectCallRuns(uint64_t number) {
    const SequenceParallelPlan plan =
        Plan(Shape(), static_cast<int>(servers_.size()));
    const oracle::CallInputs inputs = oracle::RandomInputs(plan.shape, number);
    std::vector<std::thread> callers;
    for (int rank = 0; rank < plan.world_size; ++rank) {
      callers.emplace_back([&, rank] {
        RunAttentionRequest request;
        *request.mutable_call() = MakeTestCall(plan, rank);
        request.mutable_call()->set_call_number(number);
        request.set_tensors(RankTensors(plan, inputs, rank));
        RunAttentionResponse response;
        const grpc::Status status = server(rank)->Run(request, &response);
        EXPECT_TRUE(status.ok()) << status.error_message();
      });
    }
    for (std::thread& caller : callers) caller.join();
  }

  std::shared_ptr<InProcessGroup> group_;
  std::vector<std::unique_ptr<RankTestServer>> servers_;
};

TEST_F(RankStreamTest, OutputComesInTheCallersTokenOrder) {
  Start(2);
  uint64_t number = 0;
  for (const TokenOrder order :
       {TokenOrder::kImageFirst, TokenOrder::kTextFirst}) {
    AttentionShape shape = Shape(2);
    shape.order = order;
    const SequenceParallelPlan plan = Plan(shape, 2);
    const oracle::CallInputs inputs = oracle::RandomInputs(shape, 5);
    ++number;
    std::vector<std::unique_ptr<Call>> calls;
    for (int rank = 0; rank < 2; ++rank) {
      calls.push_back(
          std::make_unique<Call>(server(rank), MakeTestCall(plan, rank)));
      calls.back()->Chunks(RankTensors(plan, inputs, rank), 100);
      calls.back()->Run(number);
    }
    for (auto& call : calls) {
      const grpc::Status status = call->Finish();
      ASSERT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(call->executions, 1);
    }
    // Rank 0 has image rows alone, rank 1 the text rows too.
    const size_t row = 4 * 8 * 4;
    std::string joined;
    for (size_t b = 0; b < 2; ++b) {
      std::string image = calls[0]->output.substr(b * 4 * row, 4 * row);
      const std::string both = calls[1]->output.substr(b * 6 * row, 6 * row);
      if (order == TokenOrder::kImageFirst) {
        joined += image + both;
      } else {
        joined += both.substr(0, 3 * row) + image + both.substr(3 * row);
      }
    }
    EXPECT_LE(
        oracle::RelativeL2Error(
            oracle::Decode(DataType::kFloat32, joined),
            oracle::Attention(shape, oracle::DefaultScale(shape), inputs)),
        oracle::AcceptedError(DataType::kFloat32));
  }
}

// 5 MiB of output, of few tokens.
AttentionShape LargeShape() {
  AttentionShape shape = Shape();
  shape.num_heads = shape.num_kv_heads = 512;
  shape.head_dim = 256;
  return shape;
}

TEST_F(RankStreamTest, OutputIsTheUnaryCallsInChunksOfAMebibyte) {
  Start(1);
  const SequenceParallelPlan plan = Plan(LargeShape(), 1);
  std::vector<float> values(static_cast<size_t>(InlineInputBytes(plan, 0, {})) /
                            sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 251) / 251;
  }
  const std::string tensors(reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(float));
  RunAttentionRequest request;
  *request.mutable_call() = MakeTestCall(plan, 0);
  request.mutable_call()->set_call_number(1);
  request.set_tensors(tensors);
  RunAttentionResponse response;
  ASSERT_TRUE(server(0)->Run(request, &response).ok());

  Call call(server(0), MakeTestCall(plan, 0));
  call.Chunks(tensors, 1 << 20);
  call.Run(2);
  ASSERT_TRUE(call.Finish().ok());
  EXPECT_THAT(call.chunks, ::testing::Each(size_t{1} << 20));
  EXPECT_TRUE(call.output == response.output());
}

TEST_F(RankStreamTest, AReaderWhoDoesNotReadHoldsUpNobody) {
  Start(1);
  const SequenceParallelPlan plan = Plan(LargeShape(), 1);
  const std::string tensors(static_cast<size_t>(InlineInputBytes(plan, 0, {})),
                            '\0');
  std::vector<std::unique_ptr<Call>> calls;
  for (uint64_t number = 1; number <= 3; ++number) {
    calls.push_back(std::make_unique<Call>(server(0), MakeTestCall(plan, 0)));
    calls.back()->Chunks(tensors, 1 << 20);
    calls.back()->Run(number);
  }
  ExpectCallRuns(4);
  for (auto& call : calls) {
    EXPECT_TRUE(call->Finish().ok());
    EXPECT_EQ(call->output.size(), size_t{5} << 20);
  }
}

TEST_F(RankStreamTest, PartsOutOfPlaceEndTheStreamAndCostNoNumber) {
  Start(1);
  const SequenceParallelPlan plan = Plan(Shape(), 1);
  const AttentionCall open = MakeTestCall(plan, 0);
  AttentionCall unspecified = open, impossible = open;
  unspecified.clear_dtype();
  impossible.set_num_heads(3);
  const auto bytes = static_cast<uint64_t>(InlineInputBytes(plan, 0, {}));
  const std::vector<std::pair<std::string, std::function<void(Call*)>>> bad = {
      {"no `open`", [](Call* call) { call->Chunk(0, "x"); }},
      {"no `open`", [](Call* call) { call->Run(1); }},
      {"second `open`",
       [&](Call* call) {
         call->Open(open);
         call->Open(open);
       }},
      {"lie within",
       [&](Call* call) {
         call->Open(open);
         call->Chunk(bytes - 1, "xy");
       }},
      {"come before",
       [&](Call* call) {
         call->Open(open);
         call->Chunk(10, "xy");
         call->Chunk(11, "x");
       }},
      {"dtype", [&](Call* call) { call->Open(unspecified); }},
      {"heads", [&](Call* call) { call->Open(impossible); }},
  };
  for (const auto& [message, send] : bad) {
    Call call(server(0));
    send(&call);
    const grpc::Status status = call.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
    EXPECT_THAT(status.error_message(), HasSubstr(message));
    EXPECT_EQ(call.executions, 0);
  }
  ExpectCallRuns(1);
}

TEST_F(RankStreamTest, WhatWasStagedIsFreedWithItsStream) {
  Start(1);
  const SequenceParallelPlan plan = Plan(LargeShape(), 1);
  const int64_t bytes = InlineInputBytes(plan, 0, {});
  Call call(server(0), MakeTestCall(plan, 0));
  call.Chunk(0, "xyz");
  call.Chunk(0, "xyz");
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::INTERNAL);
  // It went back to the pool, which gives it to the next.
  EXPECT_EQ((*server(0)->staging()->Take(1))->capacity(), bytes);
}

TEST_F(RankStreamTest, AStreamThatEndsBeforeRunCostsNoNumber) {
  Start(2);
  const SequenceParallelPlan plan = Plan(Shape(), 2);
  for (const bool cancel : {false, true}) {
    Call call(server(0), MakeTestCall(plan, 0));
    call.Chunk(0, "xyz");
    if (cancel) {
      call.context.TryCancel();
    } else {
      call.stream->WritesDone();
    }
    EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  ExpectCallRuns(1);
}

TEST_F(RankStreamTest, AfterRunARankFinishesWhatItEntered) {
  Start(2);
  const SequenceParallelPlan plan = Plan(Shape(), 2);
  const oracle::CallInputs inputs = oracle::RandomInputs(plan.shape, 1);
  Call cancelled(server(0), MakeTestCall(plan, 0));
  cancelled.Chunks(RankTensors(plan, inputs, 0), 1000);
  cancelled.Run(1);
  // The rank is idle until it has the call, and then waits for rank 1.
  while (server(0)->service()->AwaitIdle(absl::ZeroDuration())) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  cancelled.context.TryCancel();
  EXPECT_EQ(cancelled.Finish().error_code(), grpc::StatusCode::CANCELLED);
  Call patient(server(1), MakeTestCall(plan, 1));
  patient.Chunks(RankTensors(plan, inputs, 1), 1000);
  patient.Run(1);
  EXPECT_TRUE(patient.Finish().ok());
  ExpectCallRuns(2);
}

TEST_F(RankStreamTest, BytesMissingAtRunAreRefusedByAllRanks) {
  Start(2);
  const SequenceParallelPlan plan = Plan(Shape(), 2);
  const oracle::CallInputs inputs = oracle::RandomInputs(plan.shape, 1);
  Call lacking(server(0), MakeTestCall(plan, 0));
  lacking.Chunk(0, RankTensors(plan, inputs, 0).substr(1));
  lacking.Run(1);
  Call whole(server(1), MakeTestCall(plan, 1));
  whole.Chunk(0, RankTensors(plan, inputs, 1));
  whole.Run(1);
  const grpc::Status own = lacking.Finish();
  EXPECT_EQ(own.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(own.error_message(), HasSubstr("before 1 of"));
  RankRefusal refusal;
  ASSERT_TRUE(refusal.ParseFromString(own.error_details()));
  EXPECT_EQ(refusal.when(), RankRefusal::BEFORE_EXCHANGES);
  EXPECT_TRUE(refusal.own_reason());
  ASSERT_TRUE(refusal.ParseFromString(whole.Finish().error_details()));
  EXPECT_EQ(refusal.when(), RankRefusal::BEFORE_EXCHANGES);
  EXPECT_FALSE(refusal.own_reason());
  ExpectCallRuns(2);
}

TEST_F(RankStreamTest, WithoutMemoryToStageTheCallIsRefusedAtRun) {
  Start(1);
  AttentionShape shape = Shape();
  shape.image_tokens = int64_t{1} << 34;
  shape.head_dim = 256;
  Call call(server(0), MakeTestCall(Plan(shape, 1), 0));
  call.Chunk(uint64_t{1} << 40, "some bytes");
  call.Run(1);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  RankRefusal refusal;
  ASSERT_TRUE(refusal.ParseFromString(status.error_details()));
  EXPECT_TRUE(refusal.own_reason());
  ExpectCallRuns(2);
}

TEST_F(RankStreamTest, AnotherGenerationIsRefusedAtOnce) {
  Start(1);
  AttentionCall open = MakeTestCall(Plan(Shape(), 1), 0);
  open.set_generation(kTestGeneration - 1);
  Call call(server(0), open);
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(status.error_details(), "");
}

}  // namespace
}  // namespace ithaca
