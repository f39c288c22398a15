#include "client/cli/random_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "client/element_conversion.h"

namespace ithaca::client {
namespace {

std::vector<double> Normal(v1::DataType dtype, uint64_t seed, int64_t size) {
  Tensor tensor(dtype, {size});
  FillNormal(seed, &tensor);
  std::vector<double> numbers(size);
  Widen(dtype, tensor.bytes(), numbers);
  return numbers;
}

TEST(RandomCallTest, ElementsAreStandardNormal) {
  const auto numbers = Normal(v1::DATA_TYPE_FLOAT32, 1, 100001);
  double sum = 0;
  double squares = 0;
  int inside_one = 0;
  for (const double x : numbers) {
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    inside_one += std::abs(x) < 1;
  }
  const double n = static_cast<double>(numbers.size());
  EXPECT_NEAR(sum / n, 0, 0.02);
  EXPECT_NEAR(squares / n, 1, 0.02);
  EXPECT_NEAR(inside_one / n, 0.6827, 0.01);
}

TEST(RandomCallTest, SeedDecidesAndNeighboursDiffer) {
  const auto first = Normal(v1::DATA_TYPE_FLOAT32, 7, 10000);
  EXPECT_EQ(first, Normal(v1::DATA_TYPE_FLOAT32, 7, 10000));
  EXPECT_NE(first, Normal(v1::DATA_TYPE_FLOAT32, 8, 10000));
  const auto rounded = Normal(v1::DATA_TYPE_BFLOAT16, 7, 10000);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_NEAR(rounded[i], first[i], std::abs(first[i]) / 256 + 1e-30);
  }
}

TEST(RandomCallTest, TensorsAreThoseOfTheShape) {
  CallShape shape = FindNamedShape("tiny")->Shape();
  shape.batch = 2;
  shape.num_kv_heads = 2;
  shape.valid_text_tokens = {1, 4};
  const auto call = MakeRandomCall(shape, 1, 1 << 30);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->query.shape, shape.QueryShape());
  EXPECT_EQ(call->key.shape, shape.KeyShape());
  EXPECT_EQ(call->value.bytes.size(), 2u * 20 * 2 * 8 * 2);
  EXPECT_EQ(call->layout.valid_text_tokens(1), 4);
  EXPECT_NE(std::memcmp(call->key.bytes.data(), call->value.bytes.data(),
                        call->key.bytes.size()),
            0);
  EXPECT_EQ(TotalBytes(shape), 2 * (2 * 20 * 4 * 8 * 2 + 2 * 20 * 2 * 8 * 2));
}

TEST(RandomCallTest, ShapeAboveTheMessageLimitIsRefusedBeforeItIsMade) {
  const auto call =
      MakeRandomCall(FindNamedShape("wan720")->Shape(), 1, 1 << 30);
  EXPECT_EQ(call.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(call.status().message(), ::testing::HasSubstr("1024 MiB"));
}

TEST(RandomCallTest, ImpossibleShapeIsRefused) {
  CallShape shape = FindNamedShape("tiny")->Shape();
  shape.image_tokens = int64_t{1} << 62;
  EXPECT_EQ(MakeRandomCall(shape, 1, 1 << 30).status().code(),
            absl::StatusCode::kInvalidArgument);
  shape.image_tokens = -5;
  EXPECT_EQ(MakeRandomCall(shape, 1, 1 << 30).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ithaca::client
