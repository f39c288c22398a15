#include "worker/ulysses_layout.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::Each;

AttentionShape Shape() {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.batch = 2;
  shape.image_tokens = 7;
  shape.text_tokens = 5;
  shape.valid_text_tokens = {2, 4};
  shape.num_heads = 6;
  shape.num_kv_heads = 3;
  shape.head_dim = 8;
  return shape;
}

SequenceParallelPlan Plan(const AttentionShape& shape, int world_size,
                          CommunicationPrecision precision,
                          HeadSchedule schedule = HeadSchedule::kFused) {
  AttentionOptions options;
  options.precision = precision;
  options.schedule = schedule;
  return *MakeSequenceParallelPlan(shape, options, world_size);
}

TEST(UlyssesLayoutTest, CountsValidText) {
  AttentionShape shape = Shape();
  EXPECT_EQ(MaxValidText(shape), 4);
  EXPECT_EQ(MaxValidTextQueries(shape), 4);
  EXPECT_EQ(TotalValidText(shape), 6);
  shape.image_queries_only = true;
  EXPECT_EQ(MaxValidText(shape), 4);
  EXPECT_EQ(MaxValidTextQueries(shape), 0);
}

TEST(UlyssesLayoutTest, QuantizedPartsAreAlignedAndApart) {
  const QuantizedBlock block = MakeQuantizedBlock({3, 0, 5}, 72);
  ASSERT_EQ(block.parts.size(), 3);
  EXPECT_EQ(block.parts[0].payload, 0);
  EXPECT_EQ(block.parts[1].payload, 224);  // 216, aligned
  EXPECT_EQ(block.parts[2].payload, 224);
  EXPECT_EQ(block.parts[0].scales, 592);  // 224 + 360, aligned
  EXPECT_EQ(block.parts[1].scales, 608);
  EXPECT_EQ(block.parts[2].scales, 608);
  EXPECT_EQ(block.bytes, 640);
  EXPECT_EQ(MakeQuantizedBlock({0, 0, 0}, 72).bytes, 0);
}

TEST(UlyssesLayoutTest, ALoneRankNeedsTheFinalTensorsOnly) {
  const UlyssesLayout layout =
      MakeUlyssesLayout(Plan(Shape(), 1, CommunicationPrecision::kNative), 0);
  ASSERT_EQ(layout.lanes.size(), 1);
  EXPECT_THAT(layout.lanes[0].send, Each(LaneLayout::kNone));
  EXPECT_THAT(layout.lanes[0].output_receive, Each(LaneLayout::kNone));
  EXPECT_EQ(layout.lanes[0].output, LaneLayout::kNone);
  // 2 * (7 + 4) tokens of 6 + 3 + 3 heads of 8 elements of 2 bytes.
  EXPECT_GE(layout.bytes, 22 * 12 * 16);
  EXPECT_LE(layout.bytes, 22 * 12 * 16 + 3 * 256);
}

// What a rank sends has the size of what the receiver expects, and no two
// buffers share a byte.
TEST(UlyssesLayoutTest, BuffersAreApartAndInside) {
  for (CommunicationPrecision precision :
       {CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3}) {
    for (HeadSchedule schedule :
         {HeadSchedule::kFused, HeadSchedule::kPerHead}) {
      for (int world_size : {1, 2, 3, 4, 7}) {
        const SequenceParallelPlan plan =
            Plan(Shape(), world_size, precision, schedule);
        for (int rank = 0; rank < world_size; ++rank) {
          const UlyssesLayout layout = MakeUlyssesLayout(plan, rank);
          std::vector<int64_t> places;
          auto add = [&places](int64_t place) {
            if (place != LaneLayout::kNone) places.push_back(place);
          };
          for (const LaneLayout& lane : layout.lanes) {
            for (int64_t place :
                 {lane.query, lane.key, lane.value, lane.output}) {
              add(place);
            }
            for (const auto& peers : {lane.send, lane.receive, lane.output_send,
                                      lane.output_receive}) {
              ASSERT_EQ(peers.size(), size_t(world_size));
              for (int64_t place : peers) add(place);
            }
          }
          for (int64_t place : layout.text_receive) add(place);
          std::sort(places.begin(), places.end());
          EXPECT_EQ(std::adjacent_find(places.begin(), places.end()),
                    places.end());
          for (int64_t place : places) {
            EXPECT_EQ(place % 256, 0);
            EXPECT_LT(place, layout.bytes);
          }
        }
      }
    }
  }
}

TEST(UlyssesLayoutTest, PiecesAreJoinedOnlyWhereThereAreSeveral) {
  AttentionShape shape = Shape();
  shape.num_heads = 28;
  shape.num_kv_heads = 7;
  const SequenceParallelPlan plan =
      Plan(shape, 3, CommunicationPrecision::kNative);
  EXPECT_NE(MakeUlyssesLayout(plan, 0).lanes[0].output, LaneLayout::kNone);
  const SequenceParallelPlan even =
      Plan(shape, 7, CommunicationPrecision::kNative);
  EXPECT_EQ(MakeUlyssesLayout(even, 0).lanes[0].output, LaneLayout::kNone);
}

}  // namespace
}  // namespace ithaca
