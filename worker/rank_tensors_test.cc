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

TEST(BytesOfRankTest, EachPartIsTheRanksShareOfAllBatchElements) {
  const SequenceParallelPlan plan = Plan(Shape(2), 2);
  const RankTensorBytes bytes = BytesOfRank(plan, 1);  // 2 image tokens
  EXPECT_EQ(bytes.image_query, 2 * 2 * 12);
  EXPECT_EQ(bytes.image_key, 2 * 2 * 6);
  EXPECT_EQ(bytes.text_query, 2 * 4 * 12);
  EXPECT_EQ(bytes.text_key, 2 * 4 * 6);
  EXPECT_EQ(bytes.inputs(), 2 * (2 + 4) * (12 + 6 + 6));
}

TEST(BytesOfRankTest, ImageQueriesAloneHaveNoTextQuery) {
  AttentionShape shape = Shape(1);
  shape.image_queries_only = true;
  EXPECT_EQ(BytesOfRank(Plan(shape, 1), 0).text_query, 0);
  EXPECT_EQ(BytesOfRank(Plan(shape, 1), 0).text_key, 4 * 6);
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
