#include "worker/rank_message.h"

#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;

// `bytes` in slices of `piece` bytes each, some of them empty.
grpc::ByteBuffer InSlices(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices = {grpc::Slice()};
  for (size_t i = 0; i < bytes.size(); i += piece) {
    slices.emplace_back(bytes.substr(i, piece));
    if (i % 3 == 0) slices.emplace_back();
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const std::vector<std::string_view>& pieces) {
  std::string joined;
  for (std::string_view piece : pieces) joined.append(piece);
  return joined;
}

RunAttentionRequest SomeRequest(size_t tensor_bytes) {
  RunAttentionRequest request;
  request.mutable_call()->set_request_id("an id");
  request.mutable_call()->set_generation(uint64_t{1} << 60);
  request.mutable_call()->add_valid_text_tokens(300);
  request.mutable_call()->set_softmax_scale(0.125);
  std::string tensors(tensor_bytes, '\0');
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i] = static_cast<char>(i * 7);
  }
  request.set_tensors(tensors);
  return request;
}

TEST(ParseRankRequestTest, ReadsWhatTheGeneratedClassWrites) {
  for (size_t tensor_bytes : {0, 1, 40, 5000}) {
    const RunAttentionRequest expected = SomeRequest(tensor_bytes);
    for (size_t piece : {1, 2, 3, 17, 1000, 100000}) {
      RankRequest request;
      ASSERT_TRUE(ParseRankRequest(
                      InSlices(expected.SerializeAsString(), piece), &request)
                      .ok());
      EXPECT_EQ(request.call.SerializeAsString(),
                expected.call().SerializeAsString());
      EXPECT_EQ(Joined(request.tensors), expected.tensors());
    }
  }
}

TEST(ParseRankRequestTest, TensorsAreNotCopied) {
  std::string bytes = SomeRequest(5000).SerializeAsString();
  grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  RankRequest request;
  ASSERT_TRUE(ParseRankRequest(grpc::ByteBuffer(&slice, 1), &request).ok());
  ASSERT_EQ(request.tensors.size(), 1u);
  EXPECT_EQ(request.tensors[0].data(), &bytes[bytes.size() - 5000]);
}

TEST(ParseRankRequestTest, OrderRepetitionAndUnknownFieldsAreAsInProtobuf) {
  RunAttentionRequest first, second, expected;
  first.set_tensors("dropped");
  second.mutable_call()->set_batch(2);
  second.set_tensors("kept");
  RunAttentionRequest third;
  third.mutable_call()->set_head_dim(64);
  // Field 9 as varint, 10 as fixed64, 11 as bytes, 12 as fixed32.
  const std::string unknown(
      "\x48\x96\x01"
      "\x51"
      "12345678"
      "\x5a\x03"
      "abc"
      "\x65"
      "1234",
      22);
  const std::string bytes = first.SerializeAsString() + unknown +
                            second.SerializeAsString() +
                            third.SerializeAsString();
  ASSERT_TRUE(expected.ParseFromString(bytes));
  RankRequest request;
  ASSERT_TRUE(ParseRankRequest(InSlices(bytes, 5), &request).ok());
  EXPECT_EQ(request.call.SerializeAsString(),
            expected.call().SerializeAsString());
  EXPECT_EQ(Joined(request.tensors), expected.tensors());
  EXPECT_EQ(Joined(request.tensors), "kept");
}

TEST(ParseRankRequestTest, EveryTruncationIsRefusedOrShorter) {
  const std::string bytes = SomeRequest(40).SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    RunAttentionRequest expected;
    RankRequest request;
    EXPECT_EQ(ParseRankRequest(InSlices(cut, 7), &request).ok(),
              expected.ParseFromString(cut))
        << size;
  }
}

TEST(ParseRankRequestTest, LengthsBeyondTheEndAndBadTagsAreRefused) {
  for (const std::string& bytes :
       {std::string("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        std::string("\x12\x05"
                    "ab"),
        std::string("\x0a\x03\xff\xff\xff"), std::string("\x0b"),
        std::string("\x0c"),
        std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")}) {
    RankRequest request;
    EXPECT_EQ(ParseRankRequest(InSlices(bytes, 3), &request).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(FrameRankResponseTest, TheGeneratedClassReadsIt) {
  internal::v1::RankExecution execution;
  execution.set_communication_bytes(12345);
  (*execution.mutable_stage_seconds())["pack"] = 0.25;
  HostBufferPool pool;
  for (int64_t bytes : {0, 1, 300, 100000}) {
    auto buffer = *pool.Take(bytes + 10);
    std::memset(buffer->data(), 'x', static_cast<size_t>(bytes));
    const char* data = buffer->data();
    std::weak_ptr<HostBuffer> watch = buffer;
    {
      grpc::ByteBuffer message =
          FrameRankResponse(execution, std::move(buffer), bytes);
      std::vector<grpc::Slice> slices;
      ASSERT_TRUE(message.Dump(&slices).ok());
      std::string joined;
      for (const grpc::Slice& slice : slices) {
        joined.append(reinterpret_cast<const char*>(slice.begin()),
                      slice.size());
      }
      RunAttentionResponse response;
      ASSERT_TRUE(response.ParseFromString(joined));
      EXPECT_EQ(response.execution().SerializeAsString(),
                execution.SerializeAsString());
      EXPECT_EQ(response.output(),
                std::string(static_cast<size_t>(bytes), 'x'));
      if (bytes > 0) {
        EXPECT_EQ(reinterpret_cast<const char*>(slices.back().begin()), data);
        EXPECT_FALSE(watch.expired());
      }
    }
    EXPECT_TRUE(watch.expired()) << "the output is kept after it was sent";
  }
}

}  // namespace
}  // namespace ithaca
