#include "server/output_merge.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/sequence_parallel_plan.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {
namespace {

// 4 bytes a row.
SequenceParallelPlan Plan(int64_t batch, int64_t image, int64_t text,
                          TokenOrder order, int world_size) {
  AttentionShape shape;
  shape.batch = batch;
  shape.image_tokens = image;
  shape.text_tokens = text;
  shape.valid_text_tokens.assign(static_cast<size_t>(batch), text);
  shape.order = order;
  const auto plan = MakeSequenceParallelPlan(shape, {}, world_size);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TensorBytes Bytes(const std::string& bytes) {
  TensorBytes tensor;
  tensor.Append(grpc::Slice(bytes));
  return tensor;
}

struct Joined {
  std::string whole;
  std::vector<std::string> by_rank;
};

// Every row differs: its batch element, and its place in it.
Joined Rows(const SequenceParallelPlan& plan) {
  const AttentionShape& shape = plan.shape;
  Joined rows;
  rows.by_rank.resize(plan.ranks.size());
  for (int64_t b = 0; b < shape.batch; ++b) {
    const auto row = [b](char kind, int64_t token) {
      return std::string{kind, static_cast<char>('0' + b),
                         static_cast<char>('a' + token), '.'};
    };
    const auto text = [&] {
      for (int64_t t = 0; t < shape.text_tokens; ++t) {
        rows.whole += row('T', t);
        rows.by_rank.back() += row('T', t);
      }
    };
    if (shape.order == TokenOrder::kTextFirst) text();
    for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
      const Range share = plan.ranks[rank].image_tokens;
      for (int64_t t = share.begin; t < share.end(); ++t) {
        rows.whole += row('I', t);
        rows.by_rank[rank] += row('I', t);
      }
    }
    if (shape.order == TokenOrder::kImageFirst) text();
  }
  return rows;
}

TEST(OutputMergeTest, OutputsReadAsWantedJoinInTheCallersOrder) {
  for (const int world_size : {1, 2, 4, 5}) {
    for (const auto& plan :
         {Plan(1, 9, 0, TokenOrder::kImageFirst, world_size),
          Plan(3, 9, 2, TokenOrder::kImageFirst, world_size),
          Plan(3, 9, 2, TokenOrder::kTextFirst, world_size),
          Plan(2, 3, 5, TokenOrder::kTextFirst, world_size),
          Plan(2, 0, 5, TokenOrder::kImageFirst, world_size)}) {
      const Joined rows = Rows(plan);
      for (const size_t chunk : {1, 7, 4, 1000}) {
        OutputMerge merge(plan, true);
        EXPECT_EQ(merge.total_bytes(), static_cast<int64_t>(rows.whole.size()));
        std::vector<size_t> read(plan.ranks.size());
        std::string joined;
        while (const auto wanted = merge.WantedRank()) {
          const auto rank = static_cast<size_t>(*wanted);
          const std::string part = rows.by_rank[rank].substr(read[rank], chunk);
          ASSERT_FALSE(part.empty());
          ASSERT_TRUE(merge.Append(*wanted, read[rank], Bytes(part)).ok());
          read[rank] += part.size();
          EXPECT_EQ(merge.Take(0).size(), 0);
          joined += merge.Take(5).Flatten();
        }
        joined += merge.Take(1 << 20).Flatten();
        EXPECT_EQ(joined, rows.whole);
        EXPECT_EQ(merge.buffered(), 0);
        EXPECT_EQ(merge.taken(), merge.total_bytes());
      }
    }
  }
}

TEST(OutputMergeTest, WhatIsBehindAGapIsHeldBack) {
  const auto plan = Plan(1, 4, 0, TokenOrder::kImageFirst, 2);
  OutputMerge merge(plan, true);
  ASSERT_TRUE(merge.Append(1, 0, Bytes("IIIIJJJJ")).ok());
  EXPECT_EQ(merge.buffered(), 8);
  EXPECT_EQ(merge.WantedRank(), 0);
  EXPECT_TRUE(merge.Take(100).empty());
  ASSERT_TRUE(merge.Append(0, 0, Bytes("GGGGH")).ok());
  EXPECT_EQ(merge.Take(100).Flatten(), "GGGGH");
  ASSERT_TRUE(merge.Append(0, 5, Bytes("HHH")).ok());
  EXPECT_EQ(merge.WantedRank(), std::nullopt);
  EXPECT_EQ(merge.Take(100).Flatten(), "HHHIIIIJJJJ");
}

TEST(OutputMergeTest, BytesOutOfPlaceAreOurOwnFault) {
  const auto plan = Plan(1, 4, 0, TokenOrder::kImageFirst, 2);
  OutputMerge merge(plan, true);
  EXPECT_EQ(merge.Append(0, 4, Bytes("abcd")).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(merge.Append(0, 0, Bytes("123456789")).code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(merge.buffered(), 0);
  EXPECT_TRUE(merge.Append(0, 0, Bytes("12345678")).ok());
}

TEST(OutputMergeTest, AnOutputInARegionHasNoBytes) {
  const OutputMerge merge(Plan(1, 4, 1, TokenOrder::kImageFirst, 2), false);
  EXPECT_EQ(merge.total_bytes(), 0);
  EXPECT_EQ(merge.rank_bytes(1), 0);
  EXPECT_EQ(merge.WantedRank(), std::nullopt);
}

}  // namespace
}  // namespace ithaca::server
