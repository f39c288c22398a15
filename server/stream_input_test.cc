#include "server/stream_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/sequence_parallel_plan.h"

namespace ithaca::server {
namespace {

using ::testing::HasSubstr;
namespace v1 = ithaca::v1;

// query, key and value of 128, 64 and 64 bytes.
StreamScatter Scatter(const ChunkedTensors& chunked = {}) {
  AttentionShape shape;
  shape.image_tokens = 8;
  shape.valid_text_tokens = {0};
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  return StreamScatter(*MakeSequenceParallelPlan(shape, {}, 2), chunked);
}

void ExpectInvalid(const absl::StatusOr<InputRole>& accepted,
                   const std::vector<std::string>& parts) {
  EXPECT_EQ(accepted.status().code(), absl::StatusCode::kInvalidArgument);
  for (const std::string& part : parts) {
    EXPECT_THAT(std::string(accepted.status().message()), HasSubstr(part));
  }
}

TEST(StreamInputTest, TensorsMayAlternateEachInOrder) {
  StreamInput input(Scatter());
  EXPECT_EQ(*input.Accept(v1::TENSOR_ROLE_VALUE, 0, 64), InputRole::kValue);
  EXPECT_EQ(*input.Accept(v1::TENSOR_ROLE_QUERY, 0, 100), InputRole::kQuery);
  EXPECT_EQ(*input.Accept(v1::TENSOR_ROLE_KEY, 0, 1), InputRole::kKey);
  EXPECT_TRUE(input.Accept(v1::TENSOR_ROLE_QUERY, 100, 28).ok());
  EXPECT_FALSE(input.complete());
  EXPECT_TRUE(input.Accept(v1::TENSOR_ROLE_KEY, 1, 63).ok());
  EXPECT_TRUE(input.complete());
}

TEST(StreamInputTest, ChunksOutOfPlaceNameRoleAndOffsets) {
  StreamInput input(Scatter());
  ASSERT_TRUE(input.Accept(v1::TENSOR_ROLE_KEY, 0, 32).ok());
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_KEY, 33, 8),
                {"key", "expected offset 32", "got 33"});
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_KEY, 16, 32),
                {"key", "expected offset 32", "got 16"});
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_KEY, ~uint64_t{0}, 1),
                {"key", "expected offset 32"});
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_KEY, 32, 33),
                {"key", "32 bytes", "got 33"});
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_KEY, 32, 0), {"key", "0 bytes"});
  // A refused chunk counts for nothing.
  ASSERT_TRUE(input.Accept(v1::TENSOR_ROLE_KEY, 32, 32).ok());
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_KEY, 64, 1),
                {"key", "at most 0 bytes"});
}

TEST(StreamInputTest, OnlyInputsMayBeSent) {
  StreamInput input(Scatter());
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_OUTPUT, 0, 8),
                {"chunk.role", "TENSOR_ROLE_OUTPUT"});
  ExpectInvalid(input.Accept(v1::TENSOR_ROLE_UNSPECIFIED, 0, 8),
                {"chunk.role", "TENSOR_ROLE_UNSPECIFIED"});
  ExpectInvalid(input.Accept(static_cast<v1::TensorRole>(77), 0, 8),
                {"chunk.role", "number 77"});
  ChunkedTensors chunked;
  chunked.value = false;
  StreamInput without_value(Scatter(chunked));
  ExpectInvalid(without_value.Accept(v1::TENSOR_ROLE_VALUE, 0, 8),
                {"value", "memory region"});
}

TEST(StreamInputTest, AnEarlyEndNamesWhatIsMissing) {
  StreamInput input(Scatter());
  ASSERT_TRUE(input.Accept(v1::TENSOR_ROLE_QUERY, 0, 128).ok());
  ASSERT_TRUE(input.Accept(v1::TENSOR_ROLE_KEY, 0, 60).ok());
  const absl::Status missing = input.Missing();
  EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("key"));
  EXPECT_THAT(std::string(missing.message()), HasSubstr("64 bytes, got 60"));
}

}  // namespace
}  // namespace ithaca::server
