#include "server/stream_message.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "ithaca/v1/attention.pb.h"

namespace ithaca::server {
namespace {

namespace v1 = ithaca::v1;
namespace rank = ithaca::internal::v1;

grpc::ByteBuffer Buffer(const std::string& bytes) {
  // In pieces, as the network may cut them.
  std::vector<grpc::Slice> pieces;
  for (size_t at = 0; at < bytes.size(); at += 5) {
    pieces.emplace_back(bytes.substr(at, 5));
  }
  return grpc::ByteBuffer(pieces.data(), pieces.size());
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  TensorBytes bytes;
  EXPECT_TRUE(FromByteBuffer(buffer, &bytes));
  return bytes.Flatten();
}

TensorBytes Tensor(const std::string& bytes) {
  TensorBytes tensor;
  tensor.Append(grpc::Slice(bytes.substr(0, bytes.size() / 2)));
  tensor.Append(grpc::Slice(bytes.substr(bytes.size() / 2)));
  return tensor;
}

TEST(StreamMessageTest, AClientsPartsAreToldApart) {
  v1::StreamAttentionRequest message;
  message.mutable_request()->set_request_id("r1");
  ClientPart part;
  ASSERT_TRUE(ParseClientPart(Buffer(message.SerializeAsString()), &part).ok());
  EXPECT_EQ(part.kind, ClientPart::Kind::kRequest);
  EXPECT_EQ(part.request.Flatten(), message.request().SerializeAsString());

  v1::TensorChunk* const chunk = message.mutable_chunk();
  chunk->set_role(v1::TENSOR_ROLE_VALUE);
  chunk->set_offset(uint64_t{1} << 40);
  chunk->set_data(std::string(100, 'd'));
  part = ClientPart();
  ASSERT_TRUE(ParseClientPart(Buffer(message.SerializeAsString()), &part).ok());
  EXPECT_EQ(part.kind, ClientPart::Kind::kChunk);
  EXPECT_EQ(part.role, v1::TENSOR_ROLE_VALUE);
  EXPECT_EQ(part.offset, uint64_t{1} << 40);
  EXPECT_EQ(part.data.Flatten(), std::string(100, 'd'));

  part = ClientPart();
  ASSERT_TRUE(ParseClientPart(Buffer(""), &part).ok());
  EXPECT_EQ(part.kind, ClientPart::Kind::kNone);
}

TEST(StreamMessageTest, PartsThatComeTwiceMergeAsTheGeneratedParserDoes) {
  v1::StreamAttentionRequest first, second, third;
  first.mutable_chunk()->set_role(v1::TENSOR_ROLE_KEY);
  first.mutable_chunk()->set_data("first");
  second.mutable_chunk()->set_offset(7);
  second.mutable_chunk()->set_data("second");
  third.mutable_request()->set_request_id("r");
  for (const std::string& bytes :
       {first.SerializeAsString() + second.SerializeAsString(),
        third.SerializeAsString() + second.SerializeAsString(),
        first.SerializeAsString() + third.SerializeAsString() +
            third.SerializeAsString()}) {
    v1::StreamAttentionRequest expected;
    ASSERT_TRUE(expected.ParseFromString(bytes));
    ClientPart part;
    ASSERT_TRUE(ParseClientPart(Buffer(bytes), &part).ok());
    EXPECT_EQ(part.kind == ClientPart::Kind::kChunk, expected.has_chunk());
    EXPECT_EQ(part.role, expected.chunk().role());
    EXPECT_EQ(part.offset, expected.chunk().offset());
    EXPECT_EQ(part.data.Flatten(), expected.chunk().data());
    v1::AttentionRequest request;
    ASSERT_TRUE(request.ParseFromString(part.request.Flatten()));
    EXPECT_EQ(request.SerializeAsString(),
              expected.request().SerializeAsString());
  }
}

TEST(StreamMessageTest, CutMessagesAreRefused) {
  v1::StreamAttentionRequest message;
  message.mutable_chunk()->set_role(v1::TENSOR_ROLE_KEY);
  message.mutable_chunk()->set_data("some data");
  const std::string bytes = message.SerializeAsString();
  for (size_t size = 1; size < bytes.size(); ++size) {
    ClientPart part;
    EXPECT_EQ(ParseClientPart(Buffer(bytes.substr(0, size)), &part).code(),
              absl::StatusCode::kInvalidArgument);
    RankAnswerPart answer;
    EXPECT_EQ(
        ParseRankAnswerPart(Buffer(bytes.substr(0, size)), &answer).code(),
        absl::StatusCode::kInternal);
  }
}

TEST(StreamMessageTest, WhatIsSentParsesAsItsMessage) {
  const std::string data(10000, 'x');
  v1::StreamAttentionResponse response;
  ASSERT_TRUE(
      response.ParseFromString(Bytes(MakeClientChunk(300, Tensor(data)))));
  EXPECT_EQ(response.chunk().role(), v1::TENSOR_ROLE_OUTPUT);
  EXPECT_EQ(response.chunk().offset(), 300u);
  EXPECT_EQ(response.chunk().data(), data);

  v1::AttentionResponse answer;
  answer.set_request_id("r");
  ASSERT_TRUE(response.ParseFromString(Bytes(MakeClientResponse(answer))));
  EXPECT_EQ(response.response().request_id(), "r");

  rank::StreamRankRequest request;
  ASSERT_TRUE(request.ParseFromString(Bytes(MakeRankChunk(0, Tensor(data)))));
  EXPECT_EQ(request.chunk().data(), data);
  rank::AttentionCall call;
  call.set_request_id("r");
  ASSERT_TRUE(request.ParseFromString(Bytes(MakeRankOpen(call))));
  EXPECT_EQ(request.open().request_id(), "r");
  ASSERT_TRUE(request.ParseFromString(Bytes(MakeRankRun(12))));
  EXPECT_EQ(request.run().call_number(), 12u);
}

TEST(StreamMessageTest, ARanksAnswersAreToldApart) {
  rank::StreamRankResponse message;
  message.mutable_execution()->set_communication_bytes(5);
  RankAnswerPart part;
  ASSERT_TRUE(
      ParseRankAnswerPart(Buffer(message.SerializeAsString()), &part).ok());
  EXPECT_EQ(part.kind, RankAnswerPart::Kind::kExecution);
  EXPECT_EQ(part.execution.communication_bytes(), 5u);

  message.mutable_chunk()->set_offset(9);
  message.mutable_chunk()->set_data("abc");
  part = RankAnswerPart();
  ASSERT_TRUE(
      ParseRankAnswerPart(Buffer(message.SerializeAsString()), &part).ok());
  EXPECT_EQ(part.kind, RankAnswerPart::Kind::kChunk);
  EXPECT_EQ(part.offset, 9u);
  EXPECT_EQ(part.data.Flatten(), "abc");

  part = RankAnswerPart();
  EXPECT_FALSE(ParseRankAnswerPart(Buffer(""), &part).ok());
}

}  // namespace
}  // namespace ithaca::server
