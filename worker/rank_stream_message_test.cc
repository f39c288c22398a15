#include "worker/rank_stream_message.h"

#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

using internal::v1::AttentionCall;
using internal::v1::RunStaged;
using internal::v1::StreamRankRequest;
using internal::v1::StreamRankResponse;

grpc::ByteBuffer InSlices(const std::string& bytes, size_t piece) {
  std::vector<grpc::Slice> slices = {grpc::Slice()};
  for (size_t i = 0; i < bytes.size(); i += piece) {
    slices.emplace_back(bytes.substr(i, piece));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const std::vector<std::string_view>& pieces) {
  std::string joined;
  for (std::string_view piece : pieces) joined.append(piece);
  return joined;
}

std::string Bytes(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(message.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

absl::Status Parse(const std::string& bytes) {
  StreamPart part;
  return ParseStreamPart(InSlices(bytes, 3), &part);
}

std::string ChunkBytes(uint64_t offset, const std::string& data) {
  StreamRankRequest request;
  request.mutable_chunk()->set_offset(offset);
  request.mutable_chunk()->set_data(data);
  return request.SerializeAsString();
}

TEST(ParseStreamPartTest, ReadsWhatTheGeneratedClassWrites) {
  StreamRankRequest open, run;
  open.mutable_open()->set_image_tokens(77);
  run.mutable_run()->set_call_number(uint64_t{1} << 60);
  for (const size_t piece : {1, 2, 7, 1000}) {
    StreamPart part;
    ASSERT_TRUE(
        ParseStreamPart(InSlices(open.SerializeAsString(), piece), &part).ok());
    EXPECT_EQ(std::get<AttentionCall>(part.part).image_tokens(), 77);

    part = {};
    ASSERT_TRUE(
        ParseStreamPart(InSlices(run.SerializeAsString(), piece), &part).ok());
    EXPECT_EQ(std::get<RunStaged>(part.part).call_number(), uint64_t{1} << 60);

    const std::string data(500, 'x');
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1} << 63}) {
      part = {};
      ASSERT_TRUE(
          ParseStreamPart(InSlices(ChunkBytes(offset, data), piece), &part)
              .ok());
      EXPECT_EQ(std::get<StagedChunk>(part.part).offset, offset);
      EXPECT_EQ(Joined(std::get<StagedChunk>(part.part).data), data);
    }
  }
}

TEST(ParseStreamPartTest, AChunkIsNotCopied) {
  std::string bytes = ChunkBytes(5, std::string(5000, 'x'));
  grpc::Slice slice(bytes.data(), bytes.size(), grpc::Slice::STATIC_SLICE);
  StreamPart part;
  ASSERT_TRUE(ParseStreamPart(grpc::ByteBuffer(&slice, 1), &part).ok());
  const StagedChunk& chunk = std::get<StagedChunk>(part.part);
  ASSERT_EQ(chunk.data.size(), 1u);
  EXPECT_EQ(chunk.data[0].data(), &bytes[bytes.size() - 5000]);
}

TEST(ParseStreamPartTest, UnknownFieldsAreSkipped) {
  // Field 9 as a varint, in the message and in the chunk.
  const std::string unknown("\x48\x96\x01", 3);
  const std::string chunk = unknown + "\x08\x04" + unknown + "\x12\x02" + "ab";
  const std::string bytes =
      unknown + "\x12" + static_cast<char>(chunk.size()) + chunk + unknown;
  StreamPart part;
  ASSERT_TRUE(ParseStreamPart(InSlices(bytes, 4), &part).ok());
  EXPECT_EQ(std::get<StagedChunk>(part.part).offset, 4u);
  EXPECT_EQ(Joined(std::get<StagedChunk>(part.part).data), "ab");
}

TEST(ParseStreamPartTest, WhatIsNotOnePartIsRefused) {
  const std::string chunk = ChunkBytes(4, "ab");
  for (const std::string& bytes :
       {std::string(), std::string("\x48\x96\x01", 3), chunk + chunk,
        // Two offsets; data twice; data that runs over its chunk's end.
        std::string("\x12\x04\x08\x01\x08\x01", 6),
        std::string("\x12\x06\x12\x01x\x12\x01x", 8),
        std::string("\x12\x03\x12\x02xy", 6),
        // An open that is no AttentionCall.
        std::string("\x0a\x01\xff", 3)}) {
    EXPECT_EQ(Parse(bytes).code(), absl::StatusCode::kInvalidArgument);
  }
  for (size_t size = 0; size < chunk.size(); ++size) {
    EXPECT_FALSE(Parse(chunk.substr(0, size)).ok()) << size;
  }
}

TEST(FrameTest, TheGeneratedClassReadsWhatIsWritten) {
  internal::v1::RankExecution execution;
  execution.set_communication_bytes(1234);
  StreamRankResponse response;
  ASSERT_TRUE(response.ParseFromString(Bytes(FrameExecution(execution))));
  EXPECT_EQ(response.execution().communication_bytes(), 1234u);

  HostBufferPool pool;
  const std::shared_ptr<HostBuffer> output = *pool.Take(10);
  std::memcpy(output->data(), "0123456789", 10);
  const std::vector<ByteRange> ranges = {{6, 3}, {1, 2}};
  ASSERT_TRUE(response.ParseFromString(
      Bytes(FrameChunk(uint64_t{1} << 40, output, ranges))));
  EXPECT_EQ(response.chunk().offset(), uint64_t{1} << 40);
  EXPECT_EQ(response.chunk().data(), "67812");
}

TEST(FrameTest, AChunkKeepsTheOutputUntilItIsSent) {
  HostBufferPool pool;
  std::shared_ptr<HostBuffer> output = *pool.Take(10);
  const std::weak_ptr<HostBuffer> watched = output;
  const std::vector<ByteRange> ranges = {{0, 4}, {5, 5}};
  grpc::ByteBuffer chunk = FrameChunk(0, output, ranges);
  output.reset();
  EXPECT_FALSE(watched.expired());
  chunk.Clear();
  EXPECT_TRUE(watched.expired());
}

}  // namespace
}  // namespace ithaca
