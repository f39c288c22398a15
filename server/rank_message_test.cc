#include "server/rank_message.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/memory_region.h"
#include "server/protocol_enums.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {
namespace {

using ithaca::internal::v1::RunAttentionRequest;
using ithaca::internal::v1::RunAttentionResponse;

// Each element tells where it belongs, so that no misplaced row can pass.
float Tag(int64_t tensor, int64_t b, bool text, int64_t token, int64_t h,
          int64_t d) {
  int64_t tag = tensor * 2 + b;
  tag = tag * 2 + (text ? 1 : 0);
  tag = tag * 16 + token;
  tag = tag * 8 + h;
  tag = tag * 4 + d;
  return static_cast<float>(tag);
}

void AppendRow(int tensor, int64_t b, bool text, int64_t token, int64_t heads,
               int64_t dim, std::string* out) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t d = 0; d < dim; ++d) {
      const float tag = Tag(tensor, b, text, token, h, d);
      out->append(reinterpret_cast<const char*>(&tag), sizeof(tag));
    }
  }
}

// A tensor as the caller lays it out.
std::string CallersTensor(const AttentionShape& shape, int tensor,
                          int64_t text_tokens, int64_t heads) {
  std::string bytes;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const auto image = [&] {
      for (int64_t s = 0; s < shape.image_tokens; ++s) {
        AppendRow(tensor, b, false, s, heads, shape.head_dim, &bytes);
      }
    };
    if (shape.order == TokenOrder::kImageFirst) image();
    for (int64_t t = 0; t < text_tokens; ++t) {
      AppendRow(tensor, b, true, t, heads, shape.head_dim, &bytes);
    }
    if (shape.order == TokenOrder::kTextFirst) image();
  }
  return bytes;
}

// One part of a rank's tensors as the protocol defines it.
std::string RankPart(const AttentionShape& shape, int tensor, bool text,
                     Range tokens, int64_t heads) {
  std::string bytes;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t t = tokens.begin; t < tokens.end(); ++t) {
      AppendRow(tensor, b, text, t, heads, shape.head_dim, &bytes);
    }
  }
  return bytes;
}

TensorBytes InPieces(const std::string& text, size_t piece_size) {
  TensorBytes bytes;
  for (size_t at = 0; at < text.size(); at += piece_size) {
    bytes.Append(grpc::Slice(text.substr(at, piece_size)));
  }
  return bytes;
}

std::string Flatten(const grpc::ByteBuffer& buffer) {
  TensorBytes bytes;
  EXPECT_TRUE(FromByteBuffer(buffer, &bytes));
  return bytes.Flatten();
}

struct Case {
  int64_t batch, image, text;
  TokenOrder order;
  bool image_queries_only;
  int world_size;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int64_t batch : {1, 2}) {
    for (const int64_t image : {0, 1, 5}) {
      for (const int64_t text : {0, 3}) {
        for (const auto order :
             {TokenOrder::kImageFirst, TokenOrder::kTextFirst}) {
          for (const bool only : {false, true}) {
            for (const int world_size : {1, 2, 4}) {
              if (image + text == 0 || (only && image == 0)) continue;
              cases.push_back({batch, image, text, order, only, world_size});
            }
          }
        }
      }
    }
  }
  return cases;
}

SequenceParallelPlan PlanOf(const Case& c) {
  AttentionShape shape;
  shape.dtype = DataType::kFloat32;
  shape.batch = c.batch;
  shape.image_tokens = c.image;
  shape.text_tokens = c.text;
  shape.valid_text_tokens.assign(static_cast<size_t>(c.batch), c.text);
  shape.order = c.order;
  shape.image_queries_only = c.image_queries_only;
  shape.num_heads = 4;
  shape.num_kv_heads = 2;
  shape.head_dim = 3;
  auto plan = MakeSequenceParallelPlan(shape, {}, c.world_size);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

TEST(RankMessageTest, EveryRankGetsExactlyItsRows) {
  for (const Case& c : Cases()) {
    const SequenceParallelPlan plan = PlanOf(c);
    const AttentionShape& shape = plan.shape;
    CallTensors tensors;
    for (const size_t piece_size : {size_t{7}, size_t{100000}}) {
      tensors.query = InPieces(
          CallersTensor(shape, 0, shape.text_query_tokens(), 4), piece_size);
      tensors.key =
          InPieces(CallersTensor(shape, 1, shape.text_tokens, 2), piece_size);
      tensors.value =
          InPieces(CallersTensor(shape, 2, shape.text_tokens, 2), piece_size);
      const auto requests =
          MakeRankRequests(plan, DescribeCall(plan, {}, "id", 7, 9), tensors);
      ASSERT_EQ(requests.size(), static_cast<size_t>(c.world_size));
      int text_outputs = 0;
      for (int rank = 0; rank < c.world_size; ++rank) {
        RunAttentionRequest request;
        ASSERT_TRUE(request.ParseFromString(
            Flatten(requests[static_cast<size_t>(rank)])));
        const Range image = EvenShare(shape.image_tokens, c.world_size, rank);
        const Range text_queries{0, shape.text_query_tokens()};
        const Range text{0, shape.text_tokens};
        EXPECT_EQ(request.tensors(),
                  RankPart(shape, 0, false, image, 4) +
                      RankPart(shape, 1, false, image, 2) +
                      RankPart(shape, 2, false, image, 2) +
                      RankPart(shape, 0, true, text_queries, 4) +
                      RankPart(shape, 1, true, text, 2) +
                      RankPart(shape, 2, true, text, 2));
        EXPECT_EQ(request.call().call_number(), 9u);
        EXPECT_EQ(request.call().generation(), 7u);
        EXPECT_EQ(request.call().plan_fingerprint(), plan.Fingerprint());
        if (request.call().return_text_output()) ++text_outputs;
      }
      EXPECT_EQ(text_outputs, shape.text_query_tokens() > 0 ? 1 : 0);
    }
  }
}

TEST(RankMessageTest, TheOutputComesBackInTheCallersOrder) {
  for (const Case& c : Cases()) {
    const SequenceParallelPlan plan = PlanOf(c);
    const AttentionShape& shape = plan.shape;
    std::vector<RankResponse> responses(static_cast<size_t>(c.world_size));
    for (int rank = 0; rank < c.world_size; ++rank) {
      RunAttentionResponse response;
      response.mutable_execution()->set_communication_bytes(5);
      std::string output =
          RankPart(shape, 3, false,
                   EvenShare(shape.image_tokens, c.world_size, rank), 4);
      if (rank == TextOutputRank(plan)) {
        output +=
            RankPart(shape, 3, true, Range{0, shape.text_query_tokens()}, 4);
      }
      response.set_output(output);
      const grpc::Slice slice(response.SerializeAsString());
      const absl::Status status = ParseRankResponse(
          plan, OutputPlace::kResponse, rank, grpc::ByteBuffer(&slice, 1),
          &responses[static_cast<size_t>(rank)]);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(
          responses[static_cast<size_t>(rank)].execution.communication_bytes(),
          5u);
    }
    EXPECT_EQ(GatherOutput(plan, responses).Flatten(),
              CallersTensor(shape, 3, shape.text_query_tokens(), 4));
  }
}

RegionPart PartOf(uint64_t region_id, uint64_t offset, uint64_t byte_size) {
  auto region = std::make_shared<MemoryRegion>();
  region->memory.set_id(region_id);
  region->memory.mutable_shared()->set_object_name("/ithaca-test");
  return {std::move(region), offset, byte_size};
}

TEST(RankMessageTest, TensorsInRegionsAreNamedAndNotSent) {
  const SequenceParallelPlan plan =
      PlanOf({2, 5, 3, TokenOrder::kTextFirst, false, 2});
  const AttentionShape& shape = plan.shape;
  CallTensors tensors;
  tensors.key = InPieces(CallersTensor(shape, 1, shape.text_tokens, 2), 50);
  CallRegions regions;
  regions.query = PartOf(11, 4, 400);
  regions.value = PartOf(12, 8, 200);
  regions.output = PartOf(13, 16, 400);
  const auto requests =
      MakeRankRequests(plan, DescribeCall(plan, regions, "id", 7, 9), tensors);
  for (int rank = 0; rank < 2; ++rank) {
    RunAttentionRequest request;
    ASSERT_TRUE(
        request.ParseFromString(Flatten(requests[static_cast<size_t>(rank)])));
    EXPECT_EQ(request.tensors(),
              RankPart(shape, 1, false, EvenShare(5, 2, rank), 2) +
                  RankPart(shape, 1, true, Range{0, 3}, 2));
    const auto& call = request.call();
    EXPECT_FALSE(call.has_key_region());
    EXPECT_EQ(call.query_region().region().id(), 11u);
    EXPECT_EQ(call.query_region().region().shared().object_name(),
              "/ithaca-test");
    EXPECT_EQ(call.query_region().offset(), 4u);
    EXPECT_EQ(call.query_region().byte_size(), 400u);
    EXPECT_EQ(call.value_region().region().id(), 12u);
    EXPECT_EQ(call.output_region().region().id(), 13u);
    EXPECT_EQ(call.return_text_output(), rank == 1);
  }
}

TEST(RankMessageTest, AnOutputThatGoesToARegionIsNotInTheResponse) {
  const SequenceParallelPlan plan =
      PlanOf({1, 5, 3, TokenOrder::kImageFirst, false, 2});
  RunAttentionResponse response;
  response.mutable_execution()->set_communication_bytes(5);
  const grpc::Slice empty(response.SerializeAsString());
  RankResponse parsed;
  EXPECT_TRUE(ParseRankResponse(plan, OutputPlace::kRegion, 0,
                                grpc::ByteBuffer(&empty, 1), &parsed)
                  .ok());
  EXPECT_EQ(parsed.execution.communication_bytes(), 5u);
  response.set_output("x");
  const grpc::Slice full(response.SerializeAsString());
  EXPECT_EQ(ParseRankResponse(plan, OutputPlace::kRegion, 0,
                              grpc::ByteBuffer(&full, 1), &parsed)
                .code(),
            absl::StatusCode::kInternal);
}

TEST(RankMessageTest, RefusesARankOutputOfAnotherSize) {
  const SequenceParallelPlan plan =
      PlanOf({1, 5, 3, TokenOrder::kImageFirst, false, 2});
  RunAttentionResponse response;
  response.set_output(std::string(100, 'x'));
  const grpc::Slice slice(response.SerializeAsString());
  RankResponse parsed;
  EXPECT_EQ(ParseRankResponse(plan, OutputPlace::kResponse, 0,
                              grpc::ByteBuffer(&slice, 1), &parsed)
                .code(),
            absl::StatusCode::kInternal);
}

TEST(RankMessageTest, RefusesWhatIsNoResponse) {
  const SequenceParallelPlan plan =
      PlanOf({1, 5, 3, TokenOrder::kImageFirst, false, 2});
  const grpc::Slice slice("\x12\x7f");
  RankResponse parsed;
  EXPECT_EQ(ParseRankResponse(plan, OutputPlace::kResponse, 0,
                              grpc::ByteBuffer(&slice, 1), &parsed)
                .code(),
            absl::StatusCode::kInternal);
}

// A share far into a long video's tensor: token 99865 of 56 heads of 128
// bfloat16 begins past 2^31 elements in a fused q, k, v row, and past 2^32
// bytes. The pieces are one slice, seen many times, so that the test is small.
TEST(RankMessageTest, OffsetsPast32BitsAreRight) {
  constexpr int64_t kTokenStride = int64_t{3} * 56 * 128;
  EXPECT_EQ(99865 * kTokenStride + int64_t{55} * 128 + 127, 2147504127);

  const std::string mebibyte(1 << 20, 'm');
  const grpc::Slice shared(mebibyte);
  TensorBytes tensor;
  for (int i = 0; i < 5000; ++i) tensor.Append(shared);
  tensor.Append(grpc::Slice("the last row"));
  std::vector<grpc::Slice> pieces;
  tensor.AppendRange(int64_t{5000} << 20, 12, &pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(std::string(pieces[0].begin(), pieces[0].end()), "the last row");
}

}  // namespace
}  // namespace ithaca::server
