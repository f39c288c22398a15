#include "server/stream_scatter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/memory_region.h"
#include "server/rank_message.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {
namespace {

AttentionShape Shape(int64_t batch, int64_t image, int64_t text,
                     TokenOrder order, bool image_queries_only) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.batch = batch;
  shape.image_tokens = image;
  shape.text_tokens = text;
  shape.valid_text_tokens.assign(static_cast<size_t>(batch), text);
  shape.order = order;
  shape.image_queries_only = image_queries_only;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 2;
  return shape;
}

// Bytes that tell where they lie: no two places of a tensor look alike.
std::string Pattern(char tensor, int64_t size) {
  std::string bytes;
  for (int64_t i = 0; i < size; ++i) {
    bytes.push_back(static_cast<char>((i * 7 + i / 251 + tensor) & 0xff));
  }
  return bytes;
}

TensorBytes Bytes(const std::string& bytes) {
  TensorBytes tensor;
  tensor.Append(grpc::Slice(bytes));
  return tensor;
}

// What the ranks are sent in one message, the unary call's way.
std::vector<std::string> Whole(const SequenceParallelPlan& plan,
                               const std::vector<std::string>& tensors) {
  CallTensors call_tensors;
  call_tensors.query = Bytes(tensors[0]);
  call_tensors.key = Bytes(tensors[1]);
  call_tensors.value = Bytes(tensors[2]);
  std::vector<std::string> ranks;
  for (const auto& message : MakeRankRequests(
           plan, DescribeCall(plan, CallRegions(), "id", 1, 1), call_tensors)) {
    TensorBytes bytes;
    EXPECT_TRUE(FromByteBuffer(message, &bytes));
    internal::v1::RunAttentionRequest request;
    EXPECT_TRUE(request.ParseFromString(bytes.Flatten()));
    ranks.push_back(request.tensors());
  }
  return ranks;
}

TEST(StreamScatterTest, ChunksOfAnySizeMakeWhatOneMessageWould) {
  for (const int world_size : {1, 2, 3, 5}) {
    for (const AttentionShape& shape : {
             Shape(1, 8, 0, TokenOrder::kImageFirst, false),
             Shape(2, 7, 3, TokenOrder::kImageFirst, false),
             Shape(3, 7, 3, TokenOrder::kTextFirst, false),
             Shape(2, 5, 4, TokenOrder::kTextFirst, true),
             Shape(2, 2, 3, TokenOrder::kImageFirst, false),
             Shape(1, 0, 3, TokenOrder::kImageFirst, false),
         }) {
      const auto plan = MakeSequenceParallelPlan(shape, {}, world_size);
      ASSERT_TRUE(plan.ok());
      const StreamScatter scatter(*plan, {});
      std::vector<std::string> tensors;
      for (const InputRole role : kInputRoles) {
        tensors.push_back(
            Pattern(static_cast<char>(role), scatter.tensor_bytes(role)));
      }
      const std::vector<std::string> expected = Whole(*plan, tensors);
      for (const int64_t chunk : {1, 3, 16, 100, 100000}) {
        std::vector<std::string> ranks;
        std::vector<int64_t> sent(expected.size());
        for (size_t rank = 0; rank < expected.size(); ++rank) {
          EXPECT_EQ(scatter.rank_bytes(static_cast<int>(rank)),
                    static_cast<int64_t>(expected[rank].size()));
          ranks.emplace_back(expected[rank].size(), '\0');
        }
        for (const InputRole role : kInputRoles) {
          const std::string& tensor = tensors[static_cast<size_t>(role)];
          const auto total = static_cast<int64_t>(tensor.size());
          for (int64_t at = 0; at < total; at += chunk) {
            const int64_t size = std::min(chunk, total - at);
            for (const RankPart& part : scatter.Split(role, at, size)) {
              const auto rank = static_cast<size_t>(part.rank);
              ASSERT_LE(part.chunk_offset + part.size, size);
              ASSERT_LE(part.rank_offset + part.size,
                        static_cast<int64_t>(ranks[rank].size()));
              ranks[rank].replace(static_cast<size_t>(part.rank_offset),
                                  static_cast<size_t>(part.size), tensor,
                                  static_cast<size_t>(at + part.chunk_offset),
                                  static_cast<size_t>(part.size));
              sent[rank] += part.size;
            }
          }
        }
        EXPECT_EQ(ranks, expected);
        for (size_t rank = 0; rank < expected.size(); ++rank) {
          EXPECT_EQ(sent[rank], static_cast<int64_t>(expected[rank].size()));
        }
      }
    }
  }
}

TEST(StreamScatterTest, TensorsInRegionsAreLeftOutOfWhatRanksAreSent) {
  const auto plan = MakeSequenceParallelPlan(
      Shape(1, 4, 2, TokenOrder::kImageFirst, false), {}, 2);
  ASSERT_TRUE(plan.ok());
  ChunkedTensors chunked;
  chunked.key = false;
  const StreamScatter scatter(*plan, chunked);
  EXPECT_EQ(scatter.tensor_bytes(InputRole::kQuery), 6 * 16);
  EXPECT_EQ(scatter.tensor_bytes(InputRole::kKey), 0);
  EXPECT_EQ(scatter.tensor_bytes(InputRole::kValue), 6 * 8);
  EXPECT_EQ(scatter.rank_bytes(0), 4 * 16 + 4 * 8);
  // Two image rows of the query lie before the value's.
  EXPECT_THAT(scatter.Split(InputRole::kValue, 0, 8),
              ::testing::ElementsAre(RankPart{0, 0, 2 * 16, 8}));
}

TEST(StreamScatterTest, OffsetsPast4GiBReachTheRightRank) {
  // Every rank's share of the query is 4 GiB of each batch element, of the key
  // and the value 2 GiB: an offset cut to 32 bits is another rank's.
  constexpr int64_t kGiB = int64_t{1} << 30;
  const auto plan = MakeSequenceParallelPlan(
      Shape(2, kGiB, 3, TokenOrder::kImageFirst, false), {}, 4);
  ASSERT_TRUE(plan.ok());
  const StreamScatter scatter(*plan, {});
  constexpr int64_t kQuery = 16 * kGiB + 3 * 16;  // one batch element
  constexpr int64_t kValue = 8 * kGiB + 3 * 8;
  ASSERT_EQ(scatter.tensor_bytes(InputRole::kQuery), 2 * kQuery);
  ASSERT_EQ(scatter.tensor_bytes(InputRole::kValue), 2 * kValue);
  // A rank's bytes: 8 GiB of query, 4 of key, 4 of value, then text.
  EXPECT_THAT(scatter.Split(InputRole::kQuery, 4 * kGiB - 8, 16),
              ::testing::ElementsAre(RankPart{0, 0, 4 * kGiB - 8, 8},
                                     RankPart{1, 8, 0, 8}));
  EXPECT_THAT(scatter.Split(InputRole::kQuery, kQuery + 12 * kGiB + 16, 8),
              ::testing::ElementsAre(RankPart{3, 0, 4 * kGiB + 16, 8}));
  EXPECT_THAT(
      scatter.Split(InputRole::kValue, kValue + 4 * kGiB + 8, 8),
      ::testing::ElementsAre(RankPart{2, 0, (8 + 4) * kGiB + 2 * kGiB + 8, 8}));
  EXPECT_THAT(scatter.Split(InputRole::kQuery, kQuery + 16 * kGiB + 16, 8),
              ::testing::ElementsAre(RankPart{0, 0, 16 * kGiB + 64, 8},
                                     RankPart{1, 0, 16 * kGiB + 64, 8},
                                     RankPart{2, 0, 16 * kGiB + 64, 8},
                                     RankPart{3, 0, 16 * kGiB + 64, 8}));
}

}  // namespace
}  // namespace ithaca::server
