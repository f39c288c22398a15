#include "core/plan_policy.h"

#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::ElementsAre;

AttentionShape Shape(int64_t image, int64_t text, int64_t heads,
                     int64_t head_dim = 128) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = image;
  shape.text_tokens = text;
  shape.valid_text_tokens = {text};
  shape.num_heads = heads;
  shape.num_kv_heads = heads;
  shape.head_dim = head_dim;
  return shape;
}

// Heads of the first rank's lanes.
std::vector<int64_t> Lanes(const AttentionShape& shape, int world_size,
                           HeadSchedule schedule = HeadSchedule::kAuto,
                           std::string_view device = "cuda:0") {
  AttentionOptions options;
  options.schedule = schedule;
  const auto plan = MakeSequenceParallelPlan(
      shape, options, world_size, PlanPolicyFor(device, shape, world_size));
  std::vector<int64_t> heads;
  for (const Lane& lane : plan.value().ranks[0].lanes) {
    heads.push_back(lane.query_heads.size);
  }
  return heads;
}

TEST(PlanPolicyTest, LongVideosGetLanesThatFillTheGpu) {
  EXPECT_THAT(Lanes(Shape(75600, 0, 40), 8), ElementsAre(2, 2, 1));
  EXPECT_THAT(Lanes(Shape(32760, 0, 40), 8), ElementsAre(2, 2, 1));
}

TEST(PlanPolicyTest, ImagesAreFused) {
  for (const int world_size : {2, 4, 8}) {
    EXPECT_EQ(Lanes(Shape(4096, 512, 24), world_size).size(), 1)
        << world_size << " ranks";
    EXPECT_EQ(Lanes(Shape(4096, 333, 38, 64), world_size).size(), 1)
        << world_size << " ranks";
  }
}

TEST(PlanPolicyTest, LanesThatWasteAWaveAreNotTaken) {
  // 7 heads of 298 tiles are 16 waves of 132, any two lanes of them 17.
  EXPECT_EQ(Lanes(Shape(38051, 0, 56), 8).size(), 1);
}

TEST(PlanPolicyTest, WhoAsksForLanesGetsThem) {
  EXPECT_GE(Lanes(Shape(4096, 512, 24), 8, HeadSchedule::kPerHead).size(), 2);
  EXPECT_GE(Lanes(Shape(38051, 0, 56), 8, HeadSchedule::kPerHead).size(), 2);
  EXPECT_EQ(Lanes(Shape(75600, 0, 8), 8, HeadSchedule::kPerHead).size(), 1);
  EXPECT_THAT(Lanes(Shape(75600, 0, 40), 8, HeadSchedule::kFused),
              ElementsAre(5));
}

TEST(PlanPolicyTest, ALoneRankIsFused) {
  EXPECT_EQ(Lanes(Shape(75600, 0, 40), 1).size(), 1);
}

TEST(PlanPolicyTest, EveryGpuOfAHostMakesTheSamePlan) {
  const AttentionShape shape = Shape(75600, 512, 24);
  EXPECT_EQ(Lanes(shape, 8, HeadSchedule::kAuto, "cuda:0"),
            Lanes(shape, 8, HeadSchedule::kAuto, "cuda:7"));
}

TEST(PlanPolicyTest, CpusKeepTheDefault) {
  const PlanPolicy policy = PlanPolicyFor("cpu", Shape(75600, 0, 40), 8);
  EXPECT_EQ(policy.heads_per_lane, PlanPolicy{}.heads_per_lane);
  EXPECT_EQ(policy.auto_per_head_min_tokens,
            PlanPolicy{}.auto_per_head_min_tokens);
}

// No shape, however odd, makes the choice fail.
TEST(PlanPolicyTest, TakesAnyShape) {
  for (const int64_t image : {0, 1, 7, 100000}) {
    for (const int64_t heads : {1, 3, 24, 4096}) {
      for (const int world_size : {1, 2, 7, 64}) {
        const AttentionShape shape = Shape(image, 1, heads);
        EXPECT_GE(Lanes(shape, world_size).size(), 1);
        EXPECT_GE(Lanes(shape, world_size, HeadSchedule::kPerHead).size(), 1);
      }
    }
  }
}

}  // namespace
}  // namespace ithaca
