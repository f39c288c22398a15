#include "worker/rank_tensors.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A row of 2 heads of 3 float16 is 12 bytes, of the one key head 6.
AttentionShape Shape(int64_t batch) {
  AttentionShape shape;
  shape.dtype = DataType::kFloat16;
  shape.batch = batch;
  shape.image_tokens = 5;
  shape.text_tokens = 4;
  shape.valid_text_tokens.assign(static_cast<size_t>(batch), 1);
  shape.num_heads = 2;
  shape.num_kv_heads = 1;
  shape.head_dim = 3;
  return shape;
}

SequenceParallelPlan Plan(const AttentionShape& shape, int world_size) {
  return *MakeSequenceParallelPlan(shape, {}, world_size);
}

TEST(RowBlocksTest, ARanksRowsFollowItsShareAndTheOrder) {
  AttentionShape shape = Shape(2);
  // Rank 1 of 2 has image tokens 3 and 4.
  EXPECT_EQ(ImageRows(Plan(shape, 2), 1, TensorRole::kQuery),
            (RowBlocks{3 * 12, 2 * 12, 9 * 12, 2}));
  EXPECT_EQ(ImageRows(Plan(shape, 2), 1, TensorRole::kKey),
            (RowBlocks{3 * 6, 2 * 6, 9 * 6, 2}));
  EXPECT_EQ(TextRows(Plan(shape, 2), TensorRole::kValue),
            (RowBlocks{5 * 6, 4 * 6, 9 * 6, 2}));
  shape.order = TokenOrder::kTextFirst;
  EXPECT_EQ(ImageRows(Plan(shape, 2), 1, TensorRole::kOutput),
            (RowBlocks{(4 + 3) * 12, 2 * 12, 9 * 12, 2}));
  EXPECT_EQ(TextRows(Plan(shape, 2), TensorRole::kOutput),
            (RowBlocks{0, 4 * 12, 9 * 12, 2}));
}

TEST(RowBlocksTest, ImageQueriesAloneHaveNoTextRows) {
  AttentionShape shape = Shape(1);
  shape.image_queries_only = true;
  const SequenceParallelPlan plan = Plan(shape, 1);
  EXPECT_EQ(TextRows(plan, TensorRole::kQuery).bytes(), 0);
  EXPECT_EQ(TextRows(plan, TensorRole::kKey).bytes(), 4 * 6);
  EXPECT_EQ(WholeTensorBytes(shape, TensorRole::kOutput), 5 * 12);
  EXPECT_EQ(WholeTensorBytes(shape, TensorRole::kKey), 9 * 6);
}

TEST(RowBlocksTest, OneElementOrAllRowsAreOneRun) {
  EXPECT_TRUE(ImageRows(Plan(Shape(1), 2), 0, TensorRole::kKey).contiguous());
  EXPECT_FALSE(ImageRows(Plan(Shape(2), 2), 0, TensorRole::kKey).contiguous());
  AttentionShape no_text = Shape(2);
  no_text.text_tokens = 0;
  no_text.valid_text_tokens = {0, 0};
  EXPECT_TRUE(ImageRows(Plan(no_text, 1), 0, TensorRole::kKey).contiguous());
  EXPECT_FALSE(ImageRows(Plan(no_text, 2), 0, TensorRole::kKey).contiguous());
}

TEST(OutputInTokenOrderTest, OneBatchElementImageFirstIsOneRange) {
  EXPECT_THAT(OutputInTokenOrder(Plan(Shape(1), 1), 0, true),
              ElementsAre(ByteRange{0, 9 * 12}));
}

TEST(OutputInTokenOrderTest, TextGoesBeforeOrAfterTheImageOfItsElement) {
  AttentionShape shape = Shape(2);
  const int64_t image = 3 * 12, text = 4 * 12;  // of rank 0 of 2
  EXPECT_THAT(
      OutputInTokenOrder(Plan(shape, 2), 0, true),
      ElementsAre(ByteRange{0, image}, ByteRange{2 * image, text},
                  ByteRange{image, image}, ByteRange{2 * image + text, text}));
  shape.order = TokenOrder::kTextFirst;
  EXPECT_THAT(
      OutputInTokenOrder(Plan(shape, 2), 0, true),
      ElementsAre(ByteRange{2 * image, text}, ByteRange{0, image},
                  ByteRange{2 * image + text, text}, ByteRange{image, image}));
}

TEST(OutputInTokenOrderTest, WithoutTextTheImageIsOneRangeOrNone) {
  EXPECT_THAT(OutputInTokenOrder(Plan(Shape(3), 2), 1, false),
              ElementsAre(ByteRange{0, 3 * 2 * 12}));
  // More ranks than tokens: the last have none.
  EXPECT_THAT(OutputInTokenOrder(Plan(Shape(3), 7), 6, false), IsEmpty());
}

}  // namespace
}  // namespace ithaca
