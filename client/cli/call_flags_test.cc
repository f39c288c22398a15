#include "client/cli/call_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace ithaca::client {
namespace {

using ::testing::ElementsAre;

// What the flags of one command line say. Throws CLI::ParseError.
CallFlags Parse(const std::string& line) {
  CLI::App app;
  CallFlags flags;
  AddCallFlags(&app, &flags);
  app.parse(line);
  return flags;
}

TEST(CallFlagsTest, NamedShapeIsTheDefaultOfEachFlag) {
  const CallShape shape =
      Parse("--shape flux --text-tokens 0 --dtype float16").Shape();
  EXPECT_EQ(shape.image_tokens, 4096);
  EXPECT_EQ(shape.text_tokens, 0);
  EXPECT_EQ(shape.num_heads, 24);
  EXPECT_EQ(shape.dtype, v1::DATA_TYPE_FLOAT16);
}

TEST(CallFlagsTest, KeyValueHeadsFollowTheQueryHeads) {
  EXPECT_EQ(Parse("--heads 6").Shape().num_kv_heads, 6);
  EXPECT_EQ(Parse("--heads 6 --kv-heads 2").Shape().num_kv_heads, 2);
}

TEST(CallFlagsTest, EveryFlagArrives) {
  const CallFlags flags = Parse(
      "--batch 2 --image-tokens 7 --text-tokens 5 --valid-text 0,3 --heads 8 "
      "--kv-heads 4 --head-dim 16 --order text_first --image-queries-only "
      "--seed 9 --precision fp8_e4m3 --schedule per_head --kernel math "
      "--scale 0.5");
  const CallShape shape = flags.Shape();
  EXPECT_THAT(shape.QueryShape(), ElementsAre(2, 7, 8, 16));
  EXPECT_THAT(shape.KeyShape(), ElementsAre(2, 12, 4, 16));
  EXPECT_THAT(shape.valid_text_tokens, ElementsAre(0, 3));
  EXPECT_EQ(shape.order, v1::TOKEN_ORDER_TEXT_FIRST);
  EXPECT_TRUE(shape.image_queries_only);
  EXPECT_EQ(flags.seed, 9u);
  const v1::AttentionOptions options = flags.Options();
  EXPECT_EQ(options.communication_precision(),
            v1::COMMUNICATION_PRECISION_FP8_E4M3);
  EXPECT_EQ(options.head_schedule(), v1::HEAD_SCHEDULE_PER_HEAD);
  EXPECT_EQ(options.kernel(), v1::ATTENTION_KERNEL_MATH);
  EXPECT_EQ(options.softmax_scale(), 0.5);
}

TEST(CallFlagsTest, UnsetOptionsAreLeftToTheServer) {
  const v1::AttentionOptions options = Parse("").Options();
  EXPECT_FALSE(options.has_softmax_scale());
  EXPECT_EQ(options.ByteSizeLong(), 0u);
}

TEST(CallFlagsTest, UnknownNamesAreRefused) {
  EXPECT_THROW(Parse("--shape fluxx"), CLI::ParseError);
  EXPECT_THROW(Parse("--dtype float64"), CLI::ParseError);
  EXPECT_THROW(Parse("--precision unspecified"), CLI::ParseError);
  EXPECT_THROW(Parse("--kernel 77"), CLI::ParseError);
  EXPECT_THROW(Parse("--heads many"), CLI::ParseError);
}

}  // namespace
}  // namespace ithaca::client
