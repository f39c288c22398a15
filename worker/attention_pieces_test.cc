#include "worker/attention_pieces.h"

#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SequenceParallelPlan Plan(int64_t heads, int64_t kv_heads, int world_size,
                          HeadSchedule schedule, int64_t heads_per_lane = 1) {
  AttentionShape shape;
  shape.image_tokens = 8;
  shape.valid_text_tokens = {0};
  shape.num_heads = heads;
  shape.num_kv_heads = kv_heads;
  AttentionOptions options;
  options.schedule = schedule;
  PlanPolicy policy;
  policy.heads_per_lane = heads_per_lane;
  return *MakeSequenceParallelPlan(shape, options, world_size, policy);
}

TEST(AttentionPiecesTest, EvenSharesAreOnePiece) {
  const SequenceParallelPlan plan = Plan(8, 2, 2, HeadSchedule::kFused);
  EXPECT_THAT(SplitIntoAttentionPieces(plan, 0, 0),
              ElementsAre(AttentionPiece{{0, 4}, {0, 1}, 0}));
  EXPECT_THAT(SplitIntoAttentionPieces(plan, 1, 0),
              ElementsAre(AttentionPiece{{4, 4}, {1, 1}, 0}));
}

TEST(AttentionPiecesTest, CutGroupsArePiecesOfTheirOwn) {
  // 28 heads in groups of 4, over three ranks: 10, 9 and 9.
  const SequenceParallelPlan plan = Plan(28, 7, 3, HeadSchedule::kFused);
  EXPECT_THAT(SplitIntoAttentionPieces(plan, 0, 0),
              ElementsAre(AttentionPiece{{0, 8}, {0, 2}, 0},
                          AttentionPiece{{8, 2}, {2, 1}, 0}));
  EXPECT_THAT(SplitIntoAttentionPieces(plan, 1, 0),
              ElementsAre(AttentionPiece{{10, 2}, {2, 1}, 0},
                          AttentionPiece{{12, 4}, {3, 1}, 0},
                          AttentionPiece{{16, 3}, {4, 1}, 0}));
}

TEST(AttentionPiecesTest, LaterLanesUseKvHeadsOfEarlierOnes) {
  const SequenceParallelPlan plan = Plan(8, 2, 2, HeadSchedule::kPerHead);
  ASSERT_EQ(plan.num_lanes, 4);
  for (int lane = 0; lane < 4; ++lane) {
    EXPECT_THAT(SplitIntoAttentionPieces(plan, 1, lane),
                ElementsAre(AttentionPiece{{4 + lane, 1}, {1, 1}, 0}));
  }
}

TEST(AttentionPiecesTest, KvHeadsThatCameApartAreAttendedApart) {
  // Lanes of up to three heads in groups of two: the middle group is cut, and
  // the second lane finds its kv head with the first.
  const SequenceParallelPlan plan = Plan(6, 3, 1, HeadSchedule::kPerHead, 3);
  ASSERT_EQ(plan.num_lanes, 2);
  EXPECT_THAT(SplitIntoAttentionPieces(plan, 0, 0),
              ElementsAre(AttentionPiece{{0, 2}, {0, 1}, 0},
                          AttentionPiece{{2, 1}, {1, 1}, 0}));
  EXPECT_THAT(SplitIntoAttentionPieces(plan, 0, 1),
              ElementsAre(AttentionPiece{{3, 1}, {1, 1}, 0},
                          AttentionPiece{{4, 2}, {2, 1}, 1}));
}

TEST(AttentionPiecesTest, ARankWithoutHeadsHasNoPiece) {
  const SequenceParallelPlan plan = Plan(1, 1, 2, HeadSchedule::kFused);
  EXPECT_THAT(SplitIntoAttentionPieces(plan, 1, 0), IsEmpty());
}

// Whatever the split: pieces cover each query head once, in order, and give it
// kv head floor(h * Hkv / Hq), which the lane they name brought.
TEST(AttentionPiecesTest, EveryHeadMeetsItsKvHead) {
  for (int64_t kv_heads : {1, 2, 3, 7}) {
    for (int64_t group : {1, 2, 4, 5}) {
      for (int world_size : {1, 2, 3, 4, 7}) {
        for (int64_t heads_per_lane : {1, 2, 3, 100}) {
          const int64_t heads = kv_heads * group;
          const SequenceParallelPlan plan =
              Plan(heads, kv_heads, world_size, HeadSchedule::kPerHead,
                   heads_per_lane);
          int64_t next_head = 0;
          for (int rank = 0; rank < world_size; ++rank) {
            for (int lane = 0; lane < plan.num_lanes; ++lane) {
              for (const AttentionPiece& piece :
                   SplitIntoAttentionPieces(plan, rank, lane)) {
                ASSERT_EQ(piece.query_heads.begin, next_head);
                ASSERT_EQ(piece.query_heads.size % piece.kv_heads.size, 0);
                ASSERT_LE(piece.kv_lane, lane);
                const Range held =
                    plan.ranks[rank].lanes[piece.kv_lane].new_kv_heads;
                ASSERT_GE(piece.kv_heads.begin, held.begin);
                ASSERT_LE(piece.kv_heads.end(), held.end());
                const int64_t repeats =
                    piece.query_heads.size / piece.kv_heads.size;
                for (int64_t i = 0; i < piece.query_heads.size; ++i) {
                  ASSERT_EQ(piece.kv_heads.begin + i / repeats,
                            next_head * kv_heads / heads);
                  ++next_head;
                }
              }
            }
          }
          ASSERT_EQ(next_head, heads);
        }
      }
    }
  }
}

}  // namespace
}  // namespace ithaca
