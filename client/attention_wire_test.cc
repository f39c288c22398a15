#include "client/attention_wire.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace ithaca::client {
namespace {

using ::testing::HasSubstr;

Tensor Filled(v1::DataType dtype, std::vector<int64_t> shape, int seed) {
  Tensor tensor(dtype, std::move(shape));
  for (size_t i = 0; i < tensor.bytes().size(); ++i) {
    tensor.bytes()[i] = static_cast<std::byte>(seed + i * 7);
  }
  return tensor;
}

std::string BytesOf(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes().data()),
          tensor.bytes().size()};
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  grpc::Slice all;
  EXPECT_TRUE(buffer.DumpToSingleSlice(&all).ok());
  return {reinterpret_cast<const char*>(all.begin()), all.size()};
}

// Cut into slices of `piece` bytes, as a connection delivers them.
grpc::ByteBuffer Cut(const std::string& message, size_t piece) {
  std::vector<grpc::Slice> slices(1);
  for (size_t at = 0; at < message.size(); at += piece) {
    slices.emplace_back(message.substr(at, piece));
  }
  return {slices.data(), slices.size()};
}

grpc::Slice Borrow(const TensorView& tensor) {
  return {tensor.bytes.data(), tensor.bytes.size(), grpc::Slice::STATIC_SLICE};
}

class AttentionWireTest : public ::testing::Test {
 protected:
  v1::AttentionResponse Response() const {
    v1::AttentionResponse response;
    response.set_request_id("call-1");
    response.mutable_output()->set_dtype(query_.dtype());
    for (const int64_t d : query_.shape()) {
      response.mutable_output()->add_shape(d);
    }
    response.mutable_output()->set_data(BytesOf(query_));
    response.mutable_report()->set_group("group-3");
    (*response.mutable_report()->mutable_stage_seconds())["pack"] = 0.5;
    return response;
  }

  ExpectedOutput Expected(std::span<std::byte> destination = {}) const {
    return OutputOf({.query = query_.view(), .output = destination});
  }

  const Tensor query_ = Filled(v1::DATA_TYPE_BFLOAT16, {2, 5, 4, 8}, 1);
  const Tensor key_ = Filled(v1::DATA_TYPE_BFLOAT16, {2, 9, 2, 8}, 2);
  const Tensor value_ = Filled(v1::DATA_TYPE_BFLOAT16, {2, 9, 2, 8}, 3);
};

TEST_F(AttentionWireTest, RequestIsWhatProtobufReads) {
  AttentionArguments arguments{.query = query_.view(),
                               .key = key_.view(),
                               .value = value_.view(),
                               .request_id = "abc"};
  arguments.layout.set_text_tokens(4);
  arguments.layout.add_valid_text_tokens(0);
  arguments.layout.add_valid_text_tokens(3);
  arguments.options.set_softmax_scale(0.25);
  v1::AttentionRequest request;
  ASSERT_TRUE(request.ParseFromString(
      Flatten(EncodeAttentionRequest(arguments, Borrow))));
  EXPECT_EQ(request.request_id(), "abc");
  EXPECT_EQ(request.query().data(), BytesOf(query_));
  EXPECT_EQ(request.key().data(), BytesOf(key_));
  EXPECT_EQ(request.value().data(), BytesOf(value_));
  EXPECT_THAT(request.key().shape(), ::testing::ElementsAre(2, 9, 2, 8));
  EXPECT_EQ(request.value().dtype(), v1::DATA_TYPE_BFLOAT16);
  using google::protobuf::util::MessageDifferencer;
  EXPECT_TRUE(MessageDifferencer::Equals(request.layout(), arguments.layout));
  EXPECT_TRUE(MessageDifferencer::Equals(request.options(), arguments.options));
}

TEST_F(AttentionWireTest, RequestRefersToTheTensorsMemory) {
  const AttentionArguments arguments{
      .query = query_.view(), .key = key_.view(), .value = value_.view()};
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(EncodeAttentionRequest(arguments, Borrow).Dump(&slices).ok());
  int found = 0;
  for (const grpc::Slice& slice : slices) {
    for (const Tensor* tensor : {&query_, &key_, &value_}) {
      found += static_cast<const void*>(slice.begin()) ==
               static_cast<const void*>(tensor->bytes().data());
    }
  }
  EXPECT_EQ(found, 3);
}

TEST_F(AttentionWireTest, ResponseCutAnywhereIsReadWhole) {
  const std::string message = Response().SerializeAsString();
  for (const size_t piece : {1ul, 3ul, 7ul, 64ul, message.size()}) {
    grpc::ByteBuffer buffer = Cut(message, piece);
    const auto result = DecodeAttentionResponse(&buffer, Expected());
    ASSERT_TRUE(result.ok()) << result.status() << " in pieces of " << piece;
    EXPECT_EQ(result->request_id, "call-1");
    EXPECT_EQ(BytesOf(result->output), BytesOf(query_));
    EXPECT_EQ(result->output.shape(), query_.shape());
    EXPECT_EQ(result->report.group(), "group-3");
    EXPECT_EQ(result->report.stage_seconds().at("pack"), 0.5);
  }
}

TEST_F(AttentionWireTest, ResponseGoesIntoTheCallersMemory) {
  std::vector<std::byte> mine(query_.bytes().size());
  grpc::ByteBuffer buffer = Cut(Response().SerializeAsString(), 10);
  const auto result = DecodeAttentionResponse(&buffer, Expected(mine));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->output.bytes().data(), mine.data());
  EXPECT_EQ(std::memcmp(mine.data(), query_.bytes().data(), mine.size()), 0);
}

TEST_F(AttentionWireTest, ResponseOfAnotherShapeOrTypeIsRefused) {
  v1::AttentionResponse swapped = Response();
  swapped.mutable_output()->set_shape(1, 4);
  swapped.mutable_output()->set_shape(2, 5);
  v1::AttentionResponse other_type = Response();
  other_type.mutable_output()->set_dtype(v1::DATA_TYPE_FLOAT16);
  v1::AttentionResponse shorter = Response();
  shorter.mutable_output()->mutable_data()->pop_back();
  v1::AttentionResponse dataless = Response();
  dataless.mutable_output()->clear_data();
  for (const auto& response : {swapped, other_type, shorter, dataless}) {
    grpc::ByteBuffer buffer = Cut(response.SerializeAsString(), 11);
    const auto result = DecodeAttentionResponse(&buffer, Expected());
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(result.status().message(), HasSubstr("bfloat16 [2, 5, 4, 8]"));
  }
}

TEST_F(AttentionWireTest, NoPrefixOfAResponseIsTakenForIt) {
  const std::string message = Response().SerializeAsString();
  v1::AttentionResponse head = Response();
  head.clear_report();
  // The fields before the report are a whole message too, without a report.
  const size_t whole_without_report = head.ByteSizeLong();
  for (size_t size = 0; size < message.size(); ++size) {
    grpc::ByteBuffer buffer = Cut(message.substr(0, size), 16);
    const auto result = DecodeAttentionResponse(&buffer, Expected());
    EXPECT_EQ(result.ok(), size == whole_without_report) << size;
  }
}

TEST_F(AttentionWireTest, NoFlippedByteReadsOrWritesOutside) {
  const std::string message = Response().SerializeAsString();
  for (size_t at = 0; at < message.size(); ++at) {
    for (const int flip : {0x01, 0x08, 0x80, 0xff}) {
      std::string damaged = message;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      grpc::ByteBuffer buffer = Cut(damaged, 13);
      const auto result = DecodeAttentionResponse(&buffer, Expected());
      if (result.ok()) {
        EXPECT_EQ(result->output.bytes().size(), query_.bytes().size());
      }
    }
  }
}

}  // namespace
}  // namespace ithaca::client
