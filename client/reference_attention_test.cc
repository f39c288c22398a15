#include "client/reference_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "client/element_conversion.h"

namespace ithaca::client {
namespace {

Tensor Floats(std::vector<int64_t> shape, const std::vector<float>& numbers) {
  Tensor tensor(v1::DATA_TYPE_FLOAT32, std::move(shape));
  EXPECT_EQ(tensor.bytes().size(), numbers.size() * sizeof(float));
  std::memcpy(tensor.bytes().data(), numbers.data(), tensor.bytes().size());
  return tensor;
}

AttentionArguments Call(const Tensor& query, const Tensor& key,
                        const Tensor& value) {
  return {.query = query.view(), .key = key.view(), .value = value.view()};
}

OutputError Compare(const AttentionArguments& call, const Tensor& output,
                    const ReferenceOptions& options = {}) {
  const auto error = CompareWithReference(call, output, options);
  EXPECT_TRUE(error.ok()) << error.status();
  return error.value_or(OutputError{});
}

TEST(ReferenceAttentionTest, EqualLogitsGiveTheMean) {
  const Tensor zeros = Floats({1, 2, 1, 1}, {0, 0});
  const Tensor value = Floats({1, 2, 1, 1}, {1, 4});
  const AttentionArguments call = Call(zeros, zeros, value);
  EXPECT_LT(Compare(call, Floats({1, 2, 1, 1}, {2.5, 2.5})).relative_l2, 1e-12);
  EXPECT_GT(Compare(call, Floats({1, 2, 1, 1}, {2.5, 2.6})).relative_l2, 1e-2);
}

TEST(ReferenceAttentionTest, ScaleIsOneOverRootOfHeadDimUnlessSet) {
  // Logits 4 * scale and 0; values 1 and 0: the output is the sigmoid.
  const Tensor query = Floats({1, 2, 1, 4}, {1, 1, 1, 1, 0, 0, 0, 0});
  const Tensor key = Floats({1, 2, 1, 4}, {1, 1, 1, 1, 0, 0, 0, 0});
  const Tensor value = Floats({1, 2, 1, 4}, {1, 1, 1, 1, 0, 0, 0, 0});
  const auto output = [](double logit) {
    const auto w = static_cast<float>(1 / (1 + std::exp(-logit)));
    return Floats({1, 2, 1, 4}, {w, w, w, w, .5f, .5f, .5f, .5f});
  };
  AttentionArguments call = Call(query, key, value);
  EXPECT_LT(Compare(call, output(2.0)).relative_l2, 1e-6);
  call.options.set_softmax_scale(0.25);
  EXPECT_LT(Compare(call, output(1.0)).relative_l2, 1e-6);
  EXPECT_GT(Compare(call, output(2.0)).relative_l2, 1e-2);
}

TEST(ReferenceAttentionTest, PaddedTextHasNoInfluenceAndGivesZeros) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  // Image, image, text, padded text.
  const Tensor zeros = Floats({4, 1, 1}, {0, 0, 0, kNan});
  const Tensor value = Floats({4, 1, 1}, {1, 2, 6, kNan});
  AttentionArguments call = Call(zeros, zeros, value);
  call.layout.set_text_tokens(2);
  call.layout.add_valid_text_tokens(1);
  EXPECT_EQ(Compare(call, Floats({4, 1, 1}, {3, 3, 3, 0})).relative_l2, 0);
  EXPECT_GT(Compare(call, Floats({4, 1, 1}, {3, 3, 3, 3})).relative_l2, 0.1);
}

TEST(ReferenceAttentionTest, TextFirstPutsThePaddingInTheMiddle) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const Tensor zeros = Floats({4, 1, 1}, {0, kNan, 0, 0});
  const Tensor value = Floats({4, 1, 1}, {6, kNan, 1, 2});
  AttentionArguments call = Call(zeros, zeros, value);
  call.layout.set_text_tokens(2);
  call.layout.set_order(v1::TOKEN_ORDER_TEXT_FIRST);
  call.layout.add_valid_text_tokens(1);
  EXPECT_EQ(Compare(call, Floats({4, 1, 1}, {3, 0, 3, 3})).relative_l2, 0);
}

TEST(ReferenceAttentionTest, ImageQueriesAttendTextToo) {
  const Tensor query = Floats({1, 1, 1}, {0});
  const Tensor key = Floats({3, 1, 1}, {0, 0, 0});
  const Tensor value = Floats({3, 1, 1}, {1, 2, 6});
  AttentionArguments call = Call(query, key, value);
  call.layout.set_text_tokens(2);
  call.layout.set_image_queries_only(true);
  EXPECT_EQ(Compare(call, Floats({1, 1, 1}, {3})).relative_l2, 0);
}

TEST(ReferenceAttentionTest, NoKeptKeyGivesZeros) {
  const Tensor zeros = Floats({1, 1, 1}, {0});
  AttentionArguments call = Call(zeros, zeros, zeros);
  call.layout.set_text_tokens(1);
  call.layout.add_valid_text_tokens(0);
  EXPECT_EQ(Compare(call, Floats({1, 1, 1}, {0})).relative_l2, 0);
  EXPECT_EQ(Compare(call, Floats({1, 1, 1}, {2})).relative_l2, 2);
}

TEST(ReferenceAttentionTest, QueryHeadsShareKeyHeadsInOrderAndBatchesDoNotMix) {
  // 4 query heads, 2 kv heads, 2 batch elements; value = 10 * batch + kv head.
  const Tensor query = Floats({2, 1, 4, 1}, {0, 0, 0, 0, 0, 0, 0, 0});
  const Tensor key = Floats({2, 1, 2, 1}, {0, 0, 0, 0});
  const Tensor value = Floats({2, 1, 2, 1}, {1, 2, 11, 12});
  const AttentionArguments call = Call(query, key, value);
  const Tensor right = Floats({2, 1, 4, 1}, {1, 1, 2, 2, 11, 11, 12, 12});
  const Tensor interleaved = Floats({2, 1, 4, 1}, {1, 2, 1, 2, 11, 12, 11, 12});
  EXPECT_EQ(Compare(call, right).relative_l2, 0);
  EXPECT_GT(Compare(call, interleaved).relative_l2, 0.01);
}

TEST(ReferenceAttentionTest, SampleIsBoundedCountedAndTouchesEveryHead) {
  constexpr int64_t kTokens = 100;
  const Tensor zeros = Floats({1, kTokens, 3, 2}, std::vector<float>(600, 0));
  const Tensor ones = Floats({1, kTokens, 3, 2}, std::vector<float>(600, 1));
  const AttentionArguments call = Call(zeros, zeros, ones);
  // One row costs 2 * 100 * 2 multiply-adds: 10 rows of each of 3 heads.
  const ReferenceOptions options{.max_multiply_adds = 12000, .threads = 3};
  const OutputError error = Compare(call, ones, options);
  EXPECT_EQ(error.relative_l2, 0);
  EXPECT_EQ(error.compared_rows, 30);
  EXPECT_EQ(error.all_rows, 300);
  for (int head = 0; head < 3; ++head) {
    for (const int64_t token : {int64_t{0}, kTokens - 1}) {
      std::vector<float> wrong(600, 1);
      wrong[(token * 3 + head) * 2] = 0;
      EXPECT_GT(
          Compare(call, Floats({1, kTokens, 3, 2}, wrong), options).relative_l2,
          0);
    }
  }
}

TEST(ReferenceAttentionTest, NanWhereThereIsNoneIsAnInfiniteError) {
  const Tensor zeros = Floats({1, 1, 1}, {0});
  const Tensor one = Floats({1, 1, 1}, {1});
  const Tensor nan =
      Floats({1, 1, 1}, {std::numeric_limits<float>::quiet_NaN()});
  EXPECT_TRUE(std::isinf(Compare(Call(zeros, zeros, one), nan).relative_l2));
  EXPECT_TRUE(std::isinf(Compare(Call(zeros, zeros, nan), one).relative_l2));
  EXPECT_EQ(Compare(Call(zeros, zeros, nan), nan).relative_l2, 0);
}

TEST(ReferenceAttentionTest, WhatIsNoCallIsRefused) {
  const Tensor query = Floats({1, 2, 2, 1}, {0, 0, 0, 0});
  const Tensor other = Floats({1, 2, 3, 1}, {0, 0, 0, 0, 0, 0});
  AttentionArguments layout = Call(query, query, query);
  layout.layout.set_text_tokens(3);
  AttentionArguments bytes = Call(query, query, query);
  bytes.key.bytes = bytes.key.bytes.first(3);
  for (const auto& call :
       {Call(query, other, other), Call(query, query, other), layout, bytes}) {
    EXPECT_EQ(CompareWithReference(call, query).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(
      CompareWithReference(Call(query, query, query), other).status().code(),
      absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ithaca::client
