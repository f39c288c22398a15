#include "worker/warm_shapes.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(WarmShapesTest, ReadsShapesAndFillsInDefaults) {
  const auto shapes = ParseWarmShapes(
      "# a comment\n"
      "\n"
      "image-tokens=4096 text-tokens=512 heads=24 head-dim=128  # FLUX\n"
      "  image-tokens=100\theads=8 kv-heads=2 head-dim=64 dtype=float16 batch=2"
      " text-tokens=5 valid-text=3,5 order=text_first image-queries-only"
      " precision=fp8_e4m3 schedule=per_head kernel=flash scale=0.5\r\n");
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  ASSERT_EQ(shapes->size(), 2);

  const WarmShape& flux = (*shapes)[0];
  EXPECT_EQ(flux.shape.dtype, DataType::kBFloat16);
  EXPECT_EQ(flux.shape.batch, 1);
  EXPECT_EQ(flux.shape.image_tokens, 4096);
  EXPECT_EQ(flux.shape.text_tokens, 512);
  EXPECT_THAT(flux.shape.valid_text_tokens, ElementsAre(512));
  EXPECT_EQ(flux.shape.num_kv_heads, 24);
  EXPECT_DOUBLE_EQ(flux.options.softmax_scale, 1 / std::sqrt(128.0));
  EXPECT_EQ(flux.options.schedule, HeadSchedule::kAuto);

  const WarmShape& other = (*shapes)[1];
  EXPECT_EQ(other.shape.dtype, DataType::kFloat16);
  EXPECT_EQ(other.shape.order, TokenOrder::kTextFirst);
  EXPECT_TRUE(other.shape.image_queries_only);
  EXPECT_THAT(other.shape.valid_text_tokens, ElementsAre(3, 5));
  EXPECT_EQ(other.shape.num_kv_heads, 2);
  EXPECT_EQ(other.options.precision, CommunicationPrecision::kFp8E4m3);
  EXPECT_EQ(other.options.schedule, HeadSchedule::kPerHead);
  EXPECT_EQ(other.options.kernel, AttentionKernelKind::kFlash);
  EXPECT_DOUBLE_EQ(other.options.softmax_scale, 0.5);
}

TEST(WarmShapesTest, AnEmptyFileHasNone) {
  EXPECT_THAT(ParseWarmShapes("").value(), IsEmpty());
  EXPECT_THAT(ParseWarmShapes("# none\n\n").value(), IsEmpty());
}

TEST(WarmShapesTest, AWrongWordIsNamedWithItsLine) {
  for (const char* word : {"head=24", "heads=many", "dtype=int8", "heads",
                           "image-queries-only=1", "valid-text=1,,2"}) {
    const auto shapes = ParseWarmShapes(
        std::string("\nimage-tokens=1 heads=1 head-dim=1 ") + word);
    EXPECT_EQ(shapes.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(shapes.status().message()),
                AllOf(HasSubstr("line 2"), HasSubstr(word)));
  }
}

TEST(WarmShapesTest, AShapeThatNoCallHasIsRefused) {
  for (const char* line :
       {"heads=4 head-dim=8", "image-tokens=4 heads=4 head-dim=300",
        "image-tokens=4 heads=4 kv-heads=3 head-dim=8",
        "image-tokens=4 heads=4 head-dim=8 batch=0",
        "image-tokens=4 heads=4 head-dim=8 valid-text=1"}) {
    EXPECT_EQ(ParseWarmShapes(line).status().code(),
              absl::StatusCode::kInvalidArgument)
        << line;
  }
}

TEST(WarmShapesTest, AMissingFileIsNamed) {
  const auto shapes = ReadWarmShapes("/nonexistent/shapes");
  EXPECT_EQ(shapes.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(shapes.status().message()),
              HasSubstr("/nonexistent/shapes"));
}

}  // namespace
}  // namespace ithaca
