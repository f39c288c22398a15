#include "core/sequence_parallel_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

AttentionShape Shape(int64_t image_tokens, int64_t text_tokens,
                     int64_t num_heads, int64_t num_kv_heads) {
  AttentionShape shape;
  shape.image_tokens = image_tokens;
  shape.text_tokens = text_tokens;
  shape.valid_text_tokens = {text_tokens};
  shape.num_heads = num_heads;
  shape.num_kv_heads = num_kv_heads;
  shape.head_dim = 8;
  return shape;
}

SequenceParallelPlan Plan(const AttentionShape& shape, HeadSchedule schedule,
                          int world_size, const PlanPolicy& policy = {}) {
  AttentionOptions options;
  options.schedule = schedule;
  auto plan = MakeSequenceParallelPlan(shape, options, world_size, policy);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(EvenShareTest, CoversEveryItemOnceInOrder) {
  for (int64_t total = 0; total <= 40; ++total) {
    for (int64_t parts = 1; parts <= 17; ++parts) {
      int64_t next = 0;
      for (int64_t i = 0; i < parts; ++i) {
        const Range share = EvenShare(total, parts, i);
        EXPECT_EQ(share.begin, next);
        EXPECT_EQ(share.size, total / parts + (i < total % parts ? 1 : 0));
        next = share.end();
      }
      EXPECT_EQ(next, total);
    }
  }
}

TEST(EvenShareTest, HoldsForTheLargestTotals) {
  constexpr int64_t kTotal = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(EvenShare(kTotal, 4, 0).size, kTotal / 4 + 1);
  EXPECT_EQ(EvenShare(kTotal, 4, 3).end(), kTotal);
}

TEST(SplitIntoHeadRunsTest, KeepsTheGroupOfEveryHead) {
  for (const int64_t kv : {1, 2, 3, 7}) {
    for (const int64_t group : {1, 2, 4, 5}) {
      const int64_t heads = kv * group;
      for (int64_t begin = 0; begin <= heads; ++begin) {
        for (int64_t end = begin; end <= heads; ++end) {
          const auto runs = SplitIntoHeadRuns({begin, end - begin}, heads, kv);
          EXPECT_LE(runs.size(), 3u);
          int64_t next = begin;
          for (const HeadRun& run : runs) {
            EXPECT_EQ(run.query_heads.begin, next);
            ASSERT_GT(run.query_heads.size, 0);
            ASSERT_GT(run.kv_heads.size, 0);
            ASSERT_EQ(run.query_heads.size % run.kv_heads.size, 0);
            const int64_t ratio = run.query_heads.size / run.kv_heads.size;
            for (int64_t i = 0; i < run.query_heads.size; ++i) {
              // The definition: head h attends with kv head floor(h*Hkv/Hq).
              EXPECT_EQ(run.kv_heads.begin + i / ratio,
                        (run.query_heads.begin + i) * kv / heads);
            }
            next = run.query_heads.end();
          }
          EXPECT_EQ(next, end);
        }
      }
    }
  }
}

TEST(SplitIntoHeadRunsTest, CutsAtPartialGroups) {
  EXPECT_THAT(SplitIntoHeadRuns({2, 14}, 28, 7),
              ElementsAre(HeadRun{{2, 2}, {0, 1}}, HeadRun{{4, 12}, {1, 3}}));
  EXPECT_THAT(SplitIntoHeadRuns({3, 7}, 16, 4),
              ElementsAre(HeadRun{{3, 1}, {0, 1}}, HeadRun{{4, 4}, {1, 1}},
                          HeadRun{{8, 2}, {2, 1}}));
  EXPECT_THAT(SplitIntoHeadRuns({5, 2}, 16, 4),
              ElementsAre(HeadRun{{5, 2}, {1, 1}}));
  EXPECT_THAT(SplitIntoHeadRuns({0, 6}, 6, 6),
              ElementsAre(HeadRun{{0, 6}, {0, 6}}));
  EXPECT_THAT(SplitIntoHeadRuns({4, 0}, 4, 4), ElementsAre());
}

// Everything that every plan promises.
void CheckPlan(const SequenceParallelPlan& plan, int64_t heads_per_lane) {
  const AttentionShape& shape = plan.shape;
  const int64_t world = plan.world_size;
  ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(world));
  const int64_t most_heads = (shape.num_heads + world - 1) / world;
  if (plan.options.schedule == HeadSchedule::kFused) {
    EXPECT_EQ(plan.num_lanes, 1);
  } else {
    ASSERT_EQ(plan.options.schedule, HeadSchedule::kPerHead);
    EXPECT_EQ(plan.num_lanes,
              (most_heads + heads_per_lane - 1) / heads_per_lane);
  }
  EXPECT_EQ(plan.NumExchanges(),
            2 * plan.num_lanes + (shape.text_query_tokens() > 0));

  int64_t next_token = 0;
  int64_t next_head = 0;
  for (int64_t r = 0; r < world; ++r) {
    const RankShare& share = plan.ranks[r];
    EXPECT_EQ(share.image_tokens.begin, next_token);
    EXPECT_EQ(share.image_tokens.size,
              shape.image_tokens / world + (r < shape.image_tokens % world));
    EXPECT_EQ(share.query_heads.begin, next_head);
    EXPECT_EQ(share.query_heads.size,
              shape.num_heads / world + (r < shape.num_heads % world));
    next_token = share.image_tokens.end();
    next_head = share.query_heads.end();

    // Exactly the kv heads that the definition asks for.
    std::set<int64_t> needed;
    for (int64_t h = share.query_heads.begin; h < share.query_heads.end(); ++h)
      needed.insert(h * shape.num_kv_heads / shape.num_heads);
    ASSERT_EQ(static_cast<size_t>(share.kv_heads.size), needed.size());
    if (!needed.empty()) {
      EXPECT_EQ(share.kv_heads.begin, *needed.begin());
      EXPECT_EQ(share.kv_heads.end() - 1, *needed.rbegin());
    }

    ASSERT_EQ(share.lanes.size(), static_cast<size_t>(plan.num_lanes));
    int64_t lane_head = share.query_heads.begin;
    int64_t lane_kv = share.kv_heads.begin;
    for (const Lane& lane : share.lanes) {
      EXPECT_EQ(lane.query_heads.begin, lane_head);
      EXPECT_EQ(lane.new_kv_heads.begin, lane_kv);
      EXPECT_GE(lane.new_kv_heads.size, 0);
      lane_head = lane.query_heads.end();
      lane_kv = lane.new_kv_heads.end();
      if (plan.options.schedule == HeadSchedule::kPerHead) {
        EXPECT_LE(lane.query_heads.size, heads_per_lane);
      }
      // What the lane attends with has arrived, and nothing came early.
      if (lane.query_heads.size > 0) {
        const int64_t last =
            (lane.query_heads.end() - 1) * shape.num_kv_heads / shape.num_heads;
        EXPECT_EQ(lane_kv, last + 1);
      } else {
        EXPECT_EQ(lane.new_kv_heads.size, 0);
      }
    }
    EXPECT_EQ(lane_head, share.query_heads.end());
    EXPECT_EQ(lane_kv, share.kv_heads.end());
  }
  EXPECT_EQ(next_token, shape.image_tokens);
  EXPECT_EQ(next_head, shape.num_heads);
}

TEST(SequenceParallelPlanTest, OwnsEveryTokenAndHeadOnce) {
  const std::vector<std::pair<int64_t, int64_t>> heads = {
      {1, 1}, {4, 4}, {6, 6}, {8, 2}, {7, 7}, {28, 7}, {24, 24}, {6, 1}};
  for (int world = 1; world <= 9; ++world) {
    for (const int64_t image_tokens : {0, 1, 2, 3, 5, 7, 13, 64}) {
      for (const int64_t text_tokens : {0, 1, 5}) {
        if (image_tokens + text_tokens == 0) continue;
        for (const auto& [q, kv] : heads) {
          AttentionShape shape = Shape(image_tokens, text_tokens, q, kv);
          for (const bool image_queries_only : {false, true}) {
            if (image_queries_only && image_tokens == 0) continue;
            shape.image_queries_only = image_queries_only;
            CheckPlan(Plan(shape, HeadSchedule::kFused, world), 1);
            for (const int64_t heads_per_lane : {1, 2, 3, 100}) {
              CheckPlan(Plan(shape, HeadSchedule::kPerHead, world,
                             {.heads_per_lane = heads_per_lane}),
                        heads_per_lane);
            }
          }
        }
      }
    }
  }
}

TEST(SequenceParallelPlanTest, LeavesRanksEmptyWhenThereIsTooLittle) {
  const auto plan = Plan(Shape(2, 1, 3, 3), HeadSchedule::kPerHead, 4);
  EXPECT_EQ(plan.ranks[1].image_tokens, (Range{1, 1}));
  EXPECT_EQ(plan.ranks[3].image_tokens, (Range{2, 0}));
  EXPECT_EQ(plan.ranks[3].query_heads, (Range{3, 0}));
  EXPECT_EQ(plan.ranks[3].kv_heads.size, 0);
  EXPECT_THAT(plan.ranks[3].lanes, ElementsAre(Lane{{3, 0}, {3, 0}}));
}

TEST(SequenceParallelPlanTest, SharesAGroupBetweenRanks) {
  // 4 ranks of 2 heads, groups of 4: two ranks need each kv head.
  const auto plan = Plan(Shape(8, 0, 8, 2), HeadSchedule::kPerHead, 4);
  EXPECT_EQ(plan.ranks[0].kv_heads, (Range{0, 1}));
  EXPECT_EQ(plan.ranks[1].kv_heads, (Range{0, 1}));
  EXPECT_EQ(plan.ranks[3].kv_heads, (Range{1, 1}));
  // The second lane's head attends with what the first lane brought.
  EXPECT_THAT(plan.ranks[3].lanes,
              ElementsAre(Lane{{6, 1}, {1, 1}}, Lane{{7, 1}, {2, 0}}));
}

TEST(SequenceParallelPlanTest, CountsExchanges) {
  const AttentionShape with_text = Shape(64, 5, 24, 24);
  EXPECT_EQ(Plan(with_text, HeadSchedule::kFused, 8).NumExchanges(), 3);
  EXPECT_EQ(Plan(with_text, HeadSchedule::kPerHead, 8).NumExchanges(), 7);
  const AttentionShape no_text = Shape(64, 0, 24, 24);
  EXPECT_EQ(Plan(no_text, HeadSchedule::kFused, 8).NumExchanges(), 2);
  EXPECT_EQ(Plan(no_text, HeadSchedule::kPerHead, 8).NumExchanges(), 6);
  AttentionShape image_queries = with_text;
  image_queries.image_queries_only = true;
  EXPECT_EQ(Plan(image_queries, HeadSchedule::kPerHead, 8).NumExchanges(), 6);
}

TEST(SequenceParallelPlanTest, BoundsItsLanesWhateverTheNumberOfHeads) {
  const int64_t heads = int64_t{1} << 40;
  const auto plan = Plan(Shape(1, 0, heads, heads), HeadSchedule::kPerHead, 2);
  EXPECT_EQ(plan.num_lanes, SequenceParallelPlan::kMaxLanes);
  EXPECT_EQ(plan.ranks[1].lanes.back().query_heads.end(), heads);
}

TEST(SequenceParallelPlanTest, AutoFollowsThePolicy) {
  const AttentionShape large = Shape(16384, 0, 8, 8);
  const AttentionShape small = Shape(16383, 0, 8, 8);
  const auto schedule = [](const AttentionShape& shape, int world_size,
                           const PlanPolicy& policy = {}) {
    return Plan(shape, HeadSchedule::kAuto, world_size, policy)
        .options.schedule;
  };
  EXPECT_EQ(schedule(large, 2), HeadSchedule::kPerHead);
  EXPECT_EQ(schedule(small, 2), HeadSchedule::kFused);
  EXPECT_EQ(schedule(Shape(16383, 1, 8, 8), 2), HeadSchedule::kPerHead);
  EXPECT_EQ(schedule(large, 2, {.auto_per_head_min_ranks = 3}),
            HeadSchedule::kFused);
  EXPECT_EQ(schedule(large, 3, {.auto_per_head_min_ranks = 3}),
            HeadSchedule::kPerHead);
  // Alone there is no exchange to hide, whatever the policy says.
  EXPECT_EQ(schedule(large, 1, {.auto_per_head_min_ranks = 1}),
            HeadSchedule::kFused);
  // Text that asks no queries does not count.
  AttentionShape image_queries = Shape(16383, 512, 8, 8);
  image_queries.image_queries_only = true;
  EXPECT_EQ(schedule(image_queries, 2), HeadSchedule::kFused);
}

TEST(SequenceParallelPlanTest, RefusesWhatItCannotPlan) {
  const AttentionShape shape = Shape(8, 0, 4, 4);
  for (const double scale : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    AttentionOptions options;
    options.softmax_scale = scale;
    const auto status = MakeSequenceParallelPlan(shape, options, 2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("options.softmax_scale: expected a finite number"));
  }
  for (const int world_size : {0, -1}) {
    const auto status =
        MakeSequenceParallelPlan(shape, {}, world_size).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("world_size"));
  }
  EXPECT_EQ(MakeSequenceParallelPlan(Shape(8, 0, 7, 2), {}, 2).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(FingerprintTest, IsEqualOnEveryRankThatAgrees) {
  const AttentionShape shape = Shape(13, 5, 8, 2);
  EXPECT_EQ(Plan(shape, HeadSchedule::kPerHead, 3).Fingerprint(),
            Plan(shape, HeadSchedule::kPerHead, 3).Fingerprint());
  // Resolved alike is the same plan.
  EXPECT_EQ(Plan(shape, HeadSchedule::kAuto, 3).Fingerprint(),
            Plan(shape, HeadSchedule::kFused, 3).Fingerprint());
}

TEST(FingerprintTest, ChangesWithEveryField) {
  const auto base = Plan(Shape(13, 5, 8, 2), HeadSchedule::kPerHead, 3);
  using Edit = std::function<void(SequenceParallelPlan&)>;
  const std::vector<Edit> edits = {
      [](auto& p) { p.shape.dtype = DataType::kFloat16; },
      [](auto& p) { p.shape.batch = 2; },
      [](auto& p) { p.shape.image_tokens = 14; },
      [](auto& p) { p.shape.text_tokens = 6; },
      [](auto& p) { p.shape.valid_text_tokens = {4}; },
      [](auto& p) {
        p.shape.valid_text_tokens = {5, 5};
      },
      [](auto& p) { p.shape.order = TokenOrder::kTextFirst; },
      [](auto& p) { p.shape.image_queries_only = true; },
      [](auto& p) { p.shape.num_heads = 9; },
      [](auto& p) { p.shape.num_kv_heads = 3; },
      [](auto& p) { p.shape.head_dim = 9; },
      [](auto& p) { p.options.softmax_scale = std::nextafter(1.0, 2.0); },
      [](auto& p) { p.options.precision = CommunicationPrecision::kInt8; },
      [](auto& p) { p.options.precision = CommunicationPrecision::kFp8E4m3; },
      [](auto& p) { p.options.schedule = HeadSchedule::kFused; },
      [](auto& p) { p.options.kernel = AttentionKernelKind::kMath; },
      [](auto& p) { p.options.kernel = AttentionKernelKind::kFlash; },
      [](auto& p) { p.world_size = 4; },
      [](auto& p) { p.num_lanes = 4; },
      [](auto& p) { p.ranks.pop_back(); },
      [](auto& p) { p.ranks[1].image_tokens.begin += 1; },
      [](auto& p) { p.ranks[1].image_tokens.size += 1; },
      [](auto& p) { p.ranks[1].query_heads.begin += 1; },
      [](auto& p) { p.ranks[1].query_heads.size += 1; },
      [](auto& p) { p.ranks[1].kv_heads.begin += 1; },
      [](auto& p) { p.ranks[1].kv_heads.size += 1; },
      [](auto& p) { p.ranks[1].lanes.pop_back(); },
      [](auto& p) { p.ranks[1].lanes[0].query_heads.size += 1; },
      [](auto& p) { p.ranks[1].lanes[0].new_kv_heads.begin += 1; },
      [](auto& p) { std::swap(p.ranks[0], p.ranks[1]); },
  };
  std::set<uint64_t> seen = {base.Fingerprint()};
  for (size_t i = 0; i < edits.size(); ++i) {
    SequenceParallelPlan plan = base;
    edits[i](plan);
    EXPECT_TRUE(seen.insert(plan.Fingerprint()).second) << "edit " << i;
  }
}

TEST(FingerprintTest, DiffersBetweenNeighbouringCalls) {
  std::set<uint64_t> seen;
  size_t plans = 0;
  for (int64_t image_tokens = 0; image_tokens < 40; ++image_tokens) {
    for (int64_t text_tokens = 1; text_tokens < 20; ++text_tokens) {
      for (const int world : {1, 2, 4, 8}) {
        seen.insert(Plan(Shape(image_tokens, text_tokens, 8, 4),
                         HeadSchedule::kFused, world)
                        .Fingerprint());
        ++plans;
      }
    }
  }
  EXPECT_EQ(seen.size(), plans);
}

}  // namespace
}  // namespace ithaca
