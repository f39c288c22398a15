#include "server/readiness_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/attention_call.h"
#include "server/pending_call.h"

namespace ithaca::server {
namespace {

// The probe's output by its definition: the mean of the kept values, token by
// token, and 0 for padded text.
std::vector<float> RightOutput(const PendingCall& call) {
  const AttentionShape& shape = call.shape;
  const std::string bytes = call.tensors.value.Flatten();
  std::vector<float> value(bytes.size() / sizeof(float));
  std::memcpy(value.data(), bytes.data(), bytes.size());
  const auto row = static_cast<size_t>(shape.num_heads * shape.head_dim);
  const auto kept =
      static_cast<size_t>(shape.image_tokens + shape.valid_text_tokens[0]);
  std::vector<float> out(value.size(), 0.0F);
  for (size_t i = 0; i < row; ++i) {
    double sum = 0;
    for (size_t t = 0; t < kept; ++t) {
      sum += static_cast<double>(value[t * row + i]);
    }
    for (size_t t = 0; t < kept; ++t) {
      out[t * row + i] = static_cast<float>(sum / static_cast<double>(kept));
    }
  }
  return out;
}

absl::Status Check(int world_size, const std::vector<float>& output) {
  TensorBytes bytes;
  bytes.Append(grpc::Slice(output.data(), output.size() * sizeof(float)));
  return CheckReadinessProbe(world_size, bytes);
}

TEST(ReadinessProbeTest, IsAValidCallWithHeadsForEveryRank) {
  for (const int world_size : {1, 2, 3, 4, 7}) {
    const auto call = MakeReadinessProbe(world_size, {});
    ASSERT_TRUE(Validate(call->shape).ok());
    EXPECT_GE(call->shape.num_heads, world_size);
    const int64_t bytes = *TotalTensorBytes(call->shape);
    EXPECT_EQ(call->tensors.query.size() + call->tensors.key.size() +
                  call->tensors.value.size() + call->tensors.query.size(),
              bytes);
    EXPECT_LT(bytes, 1 << 16);
  }
}

TEST(ReadinessProbeTest, TakesTheRightAnswerAndNoOther) {
  for (const int world_size : {1, 2, 4}) {
    const std::vector<float> right =
        RightOutput(*MakeReadinessProbe(world_size, {}));
    EXPECT_TRUE(Check(world_size, right).ok()) << Check(world_size, right);
    for (const size_t element : {size_t{0}, right.size() - 1}) {
      for (const float value :
           {right[element] + 0.25F, std::numeric_limits<float>::quiet_NaN(),
            std::numeric_limits<float>::infinity()}) {
        std::vector<float> wrong = right;
        wrong[element] = value;
        EXPECT_EQ(Check(world_size, wrong).code(), absl::StatusCode::kInternal);
      }
    }
    EXPECT_FALSE(Check(world_size, {}).ok());
    EXPECT_FALSE(Check(world_size + 1, right).ok());
  }
}

TEST(ReadinessProbeTest, SwappedHeadsDoNotPass) {
  std::vector<float> output = RightOutput(*MakeReadinessProbe(2, {}));
  std::swap_ranges(output.begin(), output.begin() + 8, output.begin() + 8);
  EXPECT_FALSE(Check(2, output).ok());
}

}  // namespace
}  // namespace ithaca::server
