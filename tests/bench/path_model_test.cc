#include "tests/bench/path_model.h"

#include <string_view>

#include "core/plan_policy.h"
#include "gtest/gtest.h"
#include "tests/bench/model_shapes.h"

namespace ithaca::bench {
namespace {

const AttentionShape& ShapeOf(std::string_view name) {
  for (const ModelShape& model : ModelShapes()) {
    if (name == model.name) return model.shape;
  }
  ADD_FAILURE() << name;
  return ModelShapes()[0].shape;
}

SequenceParallelPlan Plan(std::string_view name, int world_size,
                          CommunicationPrecision precision,
                          HeadSchedule schedule) {
  const AttentionShape& shape = ShapeOf(name);
  return MakeSequenceParallelPlan(
             shape, ModelOptions(shape, precision, schedule), world_size,
             PlanPolicyFor("cuda:0", shape, world_size))
      .value();
}

// Without what an exchange costs at least: bytes alone.
MachineRates BytesAlone() {
  MachineRates rates;
  rates.exchange_seconds = 0;
  return rates;
}

TEST(PathModelTest, CountsARanksBytesOnceEachWay) {
  const PathTimes times = PredictPath(
      Plan("Wan720", 8, CommunicationPrecision::kNative, HeadSchedule::kFused),
      BytesAlone());
  // 66,150 rows of others, 5 heads, 256 bytes a row; q, k and v in, o back.
  EXPECT_EQ(times.bytes_in, int64_t{66150} * 5 * 256 * 3);
  EXPECT_EQ(times.bytes_back, int64_t{66150} * 5 * 256);
  // 4 tensors of 9,450 rows and 40 heads, each read and written.
  EXPECT_NEAR(times.layout, 4 * 2 * 9450.0 * 40 * 256 / (0.9 * 4.24e12), 1e-9);
  EXPECT_NEAR(times.attention, 4 * 75600.0 * 75600 * 5 * 128 / 700e12, 1e-9);
}

TEST(PathModelTest, FusedIsASumAndLanesHideAllButTheFirstAndTheLast) {
  const PathTimes fused = PredictPath(
      Plan("Wan720", 8, CommunicationPrecision::kNative, HeadSchedule::kFused),
      BytesAlone());
  EXPECT_NEAR(
      fused.path,
      fused.attention + fused.layout + fused.exchange_in + fused.exchange_back,
      1e-9);
  // Lanes of 2, 2 and 1 heads.
  const SequenceParallelPlan plan = Plan(
      "Wan720", 8, CommunicationPrecision::kNative, HeadSchedule::kPerHead);
  ASSERT_EQ(plan.num_lanes, 3);
  const PathTimes lanes = PredictPath(plan, BytesAlone());
  EXPECT_EQ(lanes.bytes_in, fused.bytes_in);
  EXPECT_NEAR(lanes.layout, fused.layout, 1e-12);
  EXPECT_NEAR(lanes.path,
              fused.attention + fused.layout + 0.4 * fused.exchange_in +
                  0.2 * fused.exchange_back,
              1e-4);
}

TEST(PathModelTest, EightBitsHalveTheWireAndAddALayoutPass) {
  const PathTimes native = PredictPath(
      Plan("H3", 8, CommunicationPrecision::kNative, HeadSchedule::kFused),
      BytesAlone());
  const PathTimes fp8 = PredictPath(
      Plan("H3", 8, CommunicationPrecision::kFp8E4m3, HeadSchedule::kFused),
      BytesAlone());
  EXPECT_EQ(fp8.bytes_in * 256, native.bytes_in * 132);
  // Packed and unpacked, 256 bytes a row one side and 132 the other.
  EXPECT_NEAR(fp8.layout / native.layout, 2 * (256.0 + 132) / (2 * 256), 1e-3);
  EXPECT_LT(fp8.path, native.path);
}

TEST(PathModelTest, AnExchangesOwnCostIsPaidWhereItIsExposed) {
  const SequenceParallelPlan plan =
      Plan("FLUX", 8, CommunicationPrecision::kNative, HeadSchedule::kFused);
  const MachineRates rates;
  // In, back, and the text's.
  EXPECT_NEAR(PredictPath(plan, rates).path,
              PredictPath(plan, BytesAlone()).path + 3 * rates.exchange_seconds,
              1e-9);
}

TEST(PathModelTest, ALoneRankOnlyAttends) {
  const SequenceParallelPlan plan =
      Plan("Wan480", 1, CommunicationPrecision::kNative, HeadSchedule::kFused);
  const PathTimes times = PredictPath(plan, MachineRates());
  EXPECT_EQ(times.path, times.attention);
  EXPECT_EQ(PredictCudaMemoryCall(plan, MachineRates()), times.attention);
}

TEST(PathModelTest, AClientsLinkAddsToACallOnEveryOtherRank) {
  const SequenceParallelPlan plan =
      Plan("Wan480", 8, CommunicationPrecision::kNative, HeadSchedule::kAuto);
  const MachineRates rates;
  // 28,665 of 32,760 rows leave the client's GPU three times and come back
  // once.
  EXPECT_NEAR(PredictCudaMemoryCall(plan, rates),
              PredictPath(plan, rates).path +
                  4.0 * 28665 * 40 * 256 / rates.client_bytes_per_second,
              1e-9);
}

}  // namespace
}  // namespace ithaca::bench
