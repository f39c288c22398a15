#include "server/call_cost.h"

#include <gtest/gtest.h>

#include "absl/time/time.h"
#include "core/attention_call.h"

namespace ithaca::server {
namespace {

AttentionShape Shape(int64_t tokens, int64_t heads) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = tokens;
  shape.valid_text_tokens = {0};
  shape.num_heads = heads;
  shape.num_kv_heads = heads;
  shape.head_dim = 128;
  return shape;
}

TEST(CallCostTest, OperationsAreThoseOfBothProducts) {
  AttentionShape shape = Shape(10, 3);
  EXPECT_DOUBLE_EQ(AttentionOperations(shape), 4.0 * 3 * 10 * 10 * 128);
  shape.text_tokens = 5;
  shape.image_queries_only = true;
  EXPECT_DOUBLE_EQ(AttentionOperations(shape), 4.0 * 3 * 10 * 15 * 128);
}

TEST(CallCostTest, ATinyCallHasTheCollectiveTimeoutAndALongOneMore) {
  const absl::Duration timeout = absl::Seconds(30);
  const absl::Duration tiny = CallTimeLimit(Shape(16, 8), 2, "cpu", timeout);
  EXPECT_GE(tiny, timeout);
  EXPECT_LE(tiny, timeout + absl::Seconds(1));
  // FLUX on four CPU ranks: 65 GFLOP each.
  EXPECT_GE(CallTimeLimit(Shape(4608, 24), 4, "cpu", timeout),
            absl::Seconds(200));
  EXPECT_LE(CallTimeLimit(Shape(4608, 24), 4, "cuda:0", timeout),
            timeout + absl::Seconds(5));
}

TEST(CallCostTest, TheBusiestRankDecides) {
  const absl::Duration one =
      CallTimeLimit(Shape(4608, 4), 4, "cpu", absl::ZeroDuration());
  const absl::Duration two =
      CallTimeLimit(Shape(4608, 5), 4, "cpu", absl::ZeroDuration());
  EXPECT_GT(two, 1.5 * one);
}

}  // namespace
}  // namespace ithaca::server
