#include "core/attention_call.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

AttentionShape GoodShape() {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.batch = 2;
  shape.image_tokens = 7;
  shape.text_tokens = 5;
  shape.valid_text_tokens = {0, 5};
  shape.num_heads = 6;
  shape.num_kv_heads = 3;
  shape.head_dim = 64;
  return shape;
}

// The error of a shape that must be refused as malformed.
std::string Refusal(const AttentionShape& shape) {
  const absl::Status status = Validate(shape);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}

TEST(ValidateTest, AcceptsEveryBoundary) {
  AttentionShape shape = GoodShape();
  EXPECT_TRUE(Validate(shape).ok());
  for (const int64_t head_dim : {1, 256}) {
    shape.head_dim = head_dim;
    EXPECT_TRUE(Validate(shape).ok()) << head_dim;
  }
  shape.image_tokens = 0;
  EXPECT_TRUE(Validate(shape).ok());
  shape = GoodShape();
  shape.text_tokens = 0;
  shape.valid_text_tokens = {0, 0};
  EXPECT_TRUE(Validate(shape).ok());
  shape.image_queries_only = true;
  shape.image_tokens = 1;
  shape.order = TokenOrder::kTextFirst;
  EXPECT_TRUE(Validate(shape).ok());
}

TEST(ValidateTest, NamesTheFieldWithExpectedAndActualValue) {
  AttentionShape shape = GoodShape();
  shape.batch = 0;
  EXPECT_EQ(Refusal(shape),
            "query.shape[0] (batch): expected 1 to 16384, got 0");

  shape = GoodShape();
  shape.batch = 16385;
  EXPECT_EQ(Refusal(shape),
            "query.shape[0] (batch): expected 1 to 16384, got 16385");

  shape = GoodShape();
  shape.image_tokens = -3;
  EXPECT_EQ(Refusal(shape),
            "query.shape[1] (image tokens): expected at least 0, got -3");

  shape = GoodShape();
  shape.text_tokens = -1;
  EXPECT_EQ(Refusal(shape), "layout.text_tokens: expected at least 0, got -1");

  shape = GoodShape();
  shape.image_tokens = shape.text_tokens = 0;
  shape.valid_text_tokens = {0, 0};
  EXPECT_EQ(Refusal(shape),
            "key.shape[1] (tokens): expected at least 1, got 0");

  shape = GoodShape();
  shape.image_queries_only = true;
  shape.image_tokens = 0;
  EXPECT_THAT(Refusal(shape),
              AllOf(HasSubstr("query.shape[1]"),
                    HasSubstr("at least 1 with layout.image_queries_only"),
                    HasSubstr("got 0")));

  shape = GoodShape();
  shape.num_heads = 0;
  EXPECT_EQ(Refusal(shape),
            "query.shape[2] (heads): expected at least 1, got 0");

  shape = GoodShape();
  shape.num_kv_heads = -2;
  EXPECT_EQ(Refusal(shape),
            "key.shape[2] (heads): expected at least 1, got -2");

  for (const int64_t head_dim : {0, 257}) {
    shape = GoodShape();
    shape.head_dim = head_dim;
    EXPECT_EQ(Refusal(shape),
              "query.shape[3] (head_dim): expected 1 to 256, "
              "got " +
                  std::to_string(head_dim));
  }
}

TEST(ValidateTest, RefusesKvHeadsThatDoNotDivideQueryHeads) {
  AttentionShape shape = GoodShape();
  shape.num_heads = 7;
  shape.num_kv_heads = 2;
  EXPECT_EQ(Refusal(shape),
            "key.shape[2] (heads): expected a divisor of query's 7 heads, "
            "got 2");
  shape.num_kv_heads = 14;
  EXPECT_THAT(Refusal(shape), HasSubstr("got 14"));
}

TEST(ValidateTest, RefusesValidLengthsThatDoNotFitTheText) {
  AttentionShape shape = GoodShape();
  shape.valid_text_tokens = {5};
  EXPECT_EQ(Refusal(shape),
            "layout.valid_text_tokens: expected 2 entries, one for each of "
            "the batch, got 1");
  shape.valid_text_tokens = {};
  EXPECT_THAT(Refusal(shape), HasSubstr("got 0"));
  for (const int64_t valid : {int64_t{6}, int64_t{-1}, kMax, kMin}) {
    shape.valid_text_tokens = {5, valid};
    EXPECT_EQ(Refusal(shape),
              "layout.valid_text_tokens[1]: expected 0 to layout.text_tokens "
              "= 5, got " +
                  std::to_string(valid));
  }
}

TEST(ValidateTest, RefusesUnknownEnumValues) {
  AttentionShape shape = GoodShape();
  shape.dtype = static_cast<DataType>(99);
  EXPECT_THAT(Refusal(shape),
              AllOf(HasSubstr("query.dtype"), HasSubstr("got 99")));
  shape = GoodShape();
  shape.order = static_cast<TokenOrder>(7);
  EXPECT_THAT(Refusal(shape),
              AllOf(HasSubstr("layout.order"), HasSubstr("got 7")));
}

TEST(ValidateTest, RefusesWhatNoMemoryHolds) {
  // The bytes of the query are 2^70, which is 0 modulo 2^64.
  AttentionShape shape = GoodShape();
  shape.batch = 1;
  shape.valid_text_tokens = {0};
  shape.text_tokens = 0;
  shape.image_tokens = int64_t{1} << 31;
  shape.num_heads = shape.num_kv_heads = int64_t{1} << 31;
  shape.head_dim = 128;
  EXPECT_THAT(Refusal(shape), HasSubstr("9223372036854775807 bytes"));

  shape = GoodShape();
  shape.image_tokens = kMax;
  EXPECT_THAT(Refusal(shape), HasSubstr("key.shape[1]"));
  shape.text_tokens = 0;
  shape.valid_text_tokens = {0, 0};
  EXPECT_THAT(Refusal(shape), HasSubstr("bytes"));
}

// Any extreme in any field is an answer, never an overflow (UBSan watches).
TEST(ValidateTest, IsSafeForEveryPairOfExtremes) {
  int64_t AttentionShape::*const fields[] = {
      &AttentionShape::batch,        &AttentionShape::image_tokens,
      &AttentionShape::text_tokens,  &AttentionShape::num_heads,
      &AttentionShape::num_kv_heads, &AttentionShape::head_dim};
  const int64_t extremes[] = {kMin,
                              kMin + 1,
                              -1,
                              0,
                              1,
                              kMax / 2,
                              kMax - 1,
                              kMax,
                              int64_t{1} << 31,
                              int64_t{1} << 32};
  for (auto first : fields) {
    for (auto second : fields) {
      for (const int64_t a : extremes) {
        for (const int64_t b : extremes) {
          AttentionShape shape = GoodShape();
          shape.*first = a;
          shape.*second = b;
          const bool negative = shape.*first < 0 || shape.*second < 0;
          if (negative) {
            EXPECT_FALSE(TotalTensorBytes(shape).has_value());
            EXPECT_FALSE(Validate(shape).ok());
          }
          if (Validate(shape).ok()) {
            EXPECT_TRUE(TotalTensorBytes(shape).has_value());
          }
        }
      }
    }
  }
}

TEST(TotalTensorBytesTest, CountsInputsAndOutput) {
  AttentionShape shape = GoodShape();
  // Two batch elements of rows of 64, 128 together: query and output have 12
  // tokens of 6 heads, key and value 12 of 3.
  constexpr int64_t kRow = 128;
  EXPECT_EQ(TotalTensorBytes(shape),
            int64_t{2} * (2 * kRow * 12 * 6 + 2 * kRow * 12 * 3));
  shape.image_queries_only = true;
  shape.dtype = DataType::kFloat32;
  EXPECT_EQ(TotalTensorBytes(shape),
            int64_t{4} * (2 * kRow * 7 * 6 + 2 * kRow * 12 * 3));
}

TEST(TotalTensorBytesTest, IsExactAtTheEdgeOfInt64) {
  AttentionShape shape;
  shape.dtype = DataType::kFloat16;
  shape.valid_text_tokens = {0};
  // Four tensors of S * 2 bytes: 2^63 - 8 at most.
  shape.image_tokens = (int64_t{1} << 60) - 1;
  EXPECT_EQ(TotalTensorBytes(shape), kMax - 7);
  EXPECT_TRUE(Validate(shape).ok());
  shape.image_tokens += 1;
  EXPECT_EQ(TotalTensorBytes(shape), std::nullopt);
  EXPECT_FALSE(Validate(shape).ok());
}

TEST(NameTest, NamesEveryValue) {
  EXPECT_EQ(Name(TokenOrder::kImageFirst), "image_first");
  EXPECT_EQ(Name(TokenOrder::kTextFirst), "text_first");
  EXPECT_EQ(Name(CommunicationPrecision::kNative), "native");
  EXPECT_EQ(Name(CommunicationPrecision::kFp8E4m3), "fp8_e4m3");
  EXPECT_EQ(Name(CommunicationPrecision::kInt8), "int8");
  EXPECT_EQ(Name(HeadSchedule::kAuto), "auto");
  EXPECT_EQ(Name(HeadSchedule::kFused), "fused");
  EXPECT_EQ(Name(HeadSchedule::kPerHead), "per_head");
  EXPECT_EQ(Name(AttentionKernelKind::kAuto), "auto");
  EXPECT_EQ(Name(AttentionKernelKind::kMath), "math");
  EXPECT_EQ(Name(AttentionKernelKind::kFlash), "flash");
  EXPECT_EQ(Name(AttentionKernelKind::kCudnn), "cudnn");
  EXPECT_EQ(Name(DataType::kFloat32), "float32");
  EXPECT_EQ(Name(DataType::kFloat16), "float16");
  EXPECT_EQ(Name(DataType::kBFloat16), "bfloat16");
  EXPECT_EQ(Name(static_cast<HeadSchedule>(99)), "unknown");
}

}  // namespace
}  // namespace ithaca
