// The stages one by one, without threads: every rank's segments are copied by
// hand between the stages.

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "gtest/gtest.h"
#include "worker/cpu_device.h"
#include "worker/gather_heads.h"
#include "worker/scatter_heads.h"
#include "worker/ulysses_call.h"

namespace ithaca {
namespace {

enum Tensor { kQuery, kKey, kValue };

// Names (tensor, text or image, b, token, head, d).
float Element(int tensor, bool text, int64_t b, int64_t t, int64_t h,
              int64_t d) {
  return static_cast<float>(
      ((((int64_t{tensor} * 2 + text) * 3 + b) * 10 + t) * 8 + h) * 4 + d);
}

std::vector<float> Fill(int tensor, bool text, int64_t batch, Range tokens,
                        int64_t heads, int64_t head_dim) {
  std::vector<float> values;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = tokens.begin; t < tokens.end(); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < head_dim; ++d) {
          values.push_back(Element(tensor, text, b, t, h, d));
        }
      }
    }
  }
  return values;
}

// One rank's tensors, memory and call.
struct Rank {
  Rank(const SequenceParallelPlan& plan, int index)
      : layout(MakeUlyssesLayout(plan, index)),
        memory(static_cast<size_t>(layout.bytes), '\xff') {
    const AttentionShape& shape = plan.shape;
    const Range own = plan.ranks[index].image_tokens;
    for (int tensor : {kQuery, kKey, kValue}) {
      const int64_t heads =
          tensor == kQuery ? shape.num_heads : shape.num_kv_heads;
      image[tensor] =
          Fill(tensor, false, shape.batch, own, heads, shape.head_dim);
      text[tensor] = Fill(tensor, true, shape.batch, {0, shape.text_tokens},
                          heads, shape.head_dim);
    }
    image_output.resize(image[kQuery].size(), -1);
    text_output.resize(text[kQuery].size(), -1);
    call = std::make_unique<UlyssesCall>(UlyssesCall{
        plan,
        layout,
        index,
        memory.data(),
        {image[kQuery].data(), image[kKey].data(), image[kValue].data(),
         text[kQuery].data(), text[kKey].data(), text[kValue].data()},
        {image_output.data(), text_output.data()}});
  }

  UlyssesLayout layout;
  std::vector<char> memory;
  std::vector<float> image[3];
  std::vector<float> text[3];
  std::vector<float> image_output;
  std::vector<float> text_output;
  std::unique_ptr<UlyssesCall> call;
};

SequenceParallelPlan Plan(CommunicationPrecision precision,
                          HeadSchedule schedule) {
  AttentionShape shape;
  shape.batch = 2;
  shape.image_tokens = 5;
  shape.text_tokens = 3;
  shape.valid_text_tokens = {1, 3};
  shape.num_heads = 6;
  shape.num_kv_heads = 2;
  shape.head_dim = 4;
  AttentionOptions options;
  options.precision = precision;
  options.schedule = schedule;
  return *MakeSequenceParallelPlan(shape, options, 4);
}

std::vector<std::unique_ptr<Rank>> Ranks(const SequenceParallelPlan& plan) {
  std::vector<std::unique_ptr<Rank>> ranks;
  ranks.reserve(static_cast<size_t>(plan.world_size));
  for (int rank = 0; rank < plan.world_size; ++rank) {
    ranks.push_back(std::make_unique<Rank>(plan, rank));
  }
  return ranks;
}

// The k-th segment from one rank to another meets the k-th one expected.
void Exchange(const std::vector<ExchangeSegments>& segments) {
  for (size_t to = 0; to < segments.size(); ++to) {
    std::vector<size_t> next(segments.size(), 0);
    for (const RecvSegment& recv : segments[to].recvs) {
      if (recv.bytes == 0) continue;
      const auto& sends = segments[recv.peer].sends;
      size_t& k = next[recv.peer];
      while (k < sends.size() &&
             (sends[k].peer != static_cast<int>(to) || sends[k].bytes == 0)) {
        ++k;
      }
      ASSERT_LT(k, sends.size());
      ASSERT_EQ(sends[k].bytes, recv.bytes);
      std::memcpy(recv.data, sends[k].data, recv.bytes);
      ++k;
    }
  }
}

void ScatterHeads(std::vector<std::unique_ptr<Rank>>& ranks, int lane) {
  CpuDevice device;
  std::vector<ExchangeSegments> segments;
  for (const auto& rank : ranks) {
    const UlyssesCall& call = *rank->call;
    const kernels::LayoutParams params = {
        call.shape().dtype, call.shape().head_dim, call.plan.options.precision};
    ASSERT_TRUE(device.CopyHeads(params, PackCopyJobs(call, lane)).ok());
    ASSERT_TRUE(
        device.QuantizeHeads(params, PackQuantizeJobs(call, lane)).ok());
    segments.push_back(InputSegments(call, lane));
  }
  Exchange(segments);
  for (const auto& rank : ranks) {
    const UlyssesCall& call = *rank->call;
    const kernels::LayoutParams params = {
        call.shape().dtype, call.shape().head_dim, call.plan.options.precision};
    ASSERT_TRUE(device.DequantizeHeads(params, UnpackJobs(call, lane)).ok());
  }
}

// Wrong elements of what piece `piece` reads, given a tolerance of the wire.
int WrongElements(const UlyssesCall& call, int lane,
                  const AttentionPiece& piece, float tolerance) {
  int wrong = 0;
  for (int64_t b = 0; b < call.shape().batch; ++b) {
    const AttentionArguments arguments = MakeAttentionArguments(
        call, lane, piece, b, AttentionKernelKind::kMath);
    const int64_t keys =
        call.shape().image_tokens + call.shape().valid_text_tokens[b];
    wrong += arguments.query.tokens != keys || arguments.key.tokens != keys;
    const TokenRows views[] = {arguments.query, arguments.key, arguments.value};
    for (int tensor : {kQuery, kKey, kValue}) {
      const Range heads = tensor == kQuery ? piece.query_heads : piece.kv_heads;
      const TokenRows& view = views[tensor];
      wrong += view.heads != heads.size;
      for (int64_t t = 0; t < view.tokens; ++t) {
        const bool text = t >= call.shape().image_tokens;
        for (int64_t h = 0; h < view.heads; ++h) {
          for (int64_t d = 0; d < call.shape().head_dim; ++d) {
            const float actual = static_cast<const float*>(
                view.data)[t * view.token_stride + h * view.head_stride + d];
            const float expected = Element(
                tensor, text, b, text ? t - call.shape().image_tokens : t,
                heads.begin + h, d);
            const float allowed = text ? 0 : tolerance * expected;
            wrong +=
                !(actual >= expected - allowed && actual <= expected + allowed);
          }
        }
      }
    }
  }
  return wrong;
}

UlyssesCall LoneCall(const SequenceParallelPlan& plan,
                     const UlyssesLayout& layout, const RankInputs& inputs) {
  return {plan, layout, /*rank=*/0, /*memory=*/nullptr, inputs, {}};
}

TEST(UlyssesStagesTest, ALoneRanksJoinedInputsAreAttendedWhereTheyLie) {
  AttentionShape shape;
  shape.image_tokens = 5;
  shape.text_tokens = 3;
  shape.valid_text_tokens = {2};
  shape.num_heads = shape.num_kv_heads = 2;
  shape.head_dim = 4;
  const SequenceParallelPlan plan = *MakeSequenceParallelPlan(shape, {}, 1);
  constexpr int64_t kImage = 5 * 2 * 4;
  alignas(16) float tensors[3][8 * 2 * 4];
  const RankInputs inputs = {tensors[0],          tensors[1],
                             tensors[2],          tensors[0] + kImage,
                             tensors[1] + kImage, tensors[2] + kImage};
  ASSERT_TRUE(InputsLieJoined(plan, inputs));
  const UlyssesLayout layout = MakeUlyssesLayout(plan, 0, true);
  EXPECT_EQ(layout.bytes, 0);
  const UlyssesCall call = LoneCall(plan, layout, inputs);
  EXPECT_TRUE(PackCopyJobs(call, 0).empty());
  const AttentionArguments arguments =
      MakeAttentionArguments(call, 0, SplitIntoAttentionPieces(plan, 0, 0)[0],
                             0, AttentionKernelKind::kMath);
  EXPECT_EQ(arguments.query.data, tensors[0]);
  EXPECT_EQ(arguments.key.data, tensors[1]);
  EXPECT_EQ(arguments.value.data, tensors[2]);
  EXPECT_EQ(arguments.query.tokens, 7);
  EXPECT_EQ(arguments.key.tokens, 7);
}

TEST(UlyssesStagesTest, InputsApartOrExchangedAreNotAttendedWhereTheyLie) {
  AttentionShape shape;
  shape.image_tokens = 5;
  shape.text_tokens = 3;
  shape.valid_text_tokens = {3};
  shape.num_heads = shape.num_kv_heads = 2;
  shape.head_dim = 4;
  constexpr int64_t kImage = 5 * 2 * 4;
  alignas(16) float tensors[3][9 * 2 * 4];
  const RankInputs joined = {tensors[0],          tensors[1],
                             tensors[2],          tensors[0] + kImage,
                             tensors[1] + kImage, tensors[2] + kImage};
  AttentionOptions options;
  EXPECT_TRUE(
      InputsLieJoined(*MakeSequenceParallelPlan(shape, options, 1), joined));
  EXPECT_FALSE(
      InputsLieJoined(*MakeSequenceParallelPlan(shape, options, 2), joined));

  RankInputs apart = joined;
  apart.text_value = tensors[2] + kImage + 4;
  EXPECT_FALSE(
      InputsLieJoined(*MakeSequenceParallelPlan(shape, options, 1), apart));
  RankInputs unaligned = joined;
  unaligned.image_query = tensors[0] + 1;
  unaligned.text_query = tensors[0] + 1 + kImage;
  EXPECT_FALSE(
      InputsLieJoined(*MakeSequenceParallelPlan(shape, options, 1), unaligned));

  options.precision = CommunicationPrecision::kInt8;
  EXPECT_FALSE(
      InputsLieJoined(*MakeSequenceParallelPlan(shape, options, 1), joined));
  options.precision = CommunicationPrecision::kNative;
  shape.batch = 2;
  shape.valid_text_tokens = {3, 3};
  EXPECT_FALSE(
      InputsLieJoined(*MakeSequenceParallelPlan(shape, options, 1), joined));
  shape.valid_text_tokens = {0, 0};
  EXPECT_TRUE(
      InputsLieJoined(*MakeSequenceParallelPlan(shape, options, 1), joined));
}

TEST(UlyssesStagesTest, ScatterHeadsGathersTheSequence) {
  struct Case {
    CommunicationPrecision precision;
    float tolerance;
  };
  for (const Case& c : {Case{CommunicationPrecision::kNative, 0},
                        Case{CommunicationPrecision::kFp8E4m3, 0.0625F},
                        Case{CommunicationPrecision::kInt8, 0.01F}}) {
    for (HeadSchedule schedule :
         {HeadSchedule::kFused, HeadSchedule::kPerHead}) {
      const SequenceParallelPlan plan = Plan(c.precision, schedule);
      auto ranks = Ranks(plan);
      for (int lane = 0; lane < plan.num_lanes; ++lane) {
        ScatterHeads(ranks, lane);
        for (const auto& rank : ranks) {
          for (const AttentionPiece& piece :
               SplitIntoAttentionPieces(plan, rank->call->rank, lane)) {
            EXPECT_EQ(WrongElements(*rank->call, lane, piece, c.tolerance), 0)
                << Name(c.precision) << " rank " << rank->call->rank << " lane "
                << lane;
          }
        }
      }
    }
  }
}

// An attention that gives back its queries.
LaneOutput EchoQueries(
    const UlyssesCall& call, int lane,
    std::vector<std::unique_ptr<std::vector<float>>>& owned) {
  const int64_t head_dim = call.shape().head_dim;
  LaneOutput output;
  output.pieces = SplitIntoAttentionPieces(call.plan, call.rank, lane);
  for (const AttentionPiece& piece : output.pieces) {
    for (int64_t b = 0; b < call.shape().batch; ++b) {
      const TokenRows query = MakeAttentionArguments(call, lane, piece, b,
                                                     AttentionKernelKind::kMath)
                                  .query;
      auto rows = std::make_unique<std::vector<float>>();
      for (int64_t t = 0; t < query.tokens; ++t) {
        for (int64_t h = 0; h < query.heads; ++h) {
          const float* row = static_cast<const float*>(query.data) +
                             t * query.token_stride + h * query.head_stride;
          rows->insert(rows->end(), row, row + head_dim);
        }
      }
      AttentionResult result;
      result.out = {rows->data(), query.tokens, query.heads,
                    query.heads * head_dim, head_dim};
      output.results.push_back(std::move(result));
      owned.push_back(std::move(rows));
    }
  }
  return output;
}

TEST(UlyssesStagesTest, TheWayBackUndoesTheWayIn) {
  for (HeadSchedule schedule : {HeadSchedule::kFused, HeadSchedule::kPerHead}) {
    const SequenceParallelPlan plan =
        Plan(CommunicationPrecision::kNative, schedule);
    const kernels::LayoutParams params = {plan.shape.dtype, plan.shape.head_dim,
                                          plan.options.precision};
    auto ranks = Ranks(plan);
    CpuDevice device;
    std::vector<std::unique_ptr<std::vector<float>>> owned;
    std::vector<std::vector<LaneOutput>> outputs(ranks.size());  // by lane
    for (int lane = 0; lane < plan.num_lanes; ++lane) {
      ScatterHeads(ranks, lane);
      std::vector<ExchangeSegments> segments;
      for (size_t r = 0; r < ranks.size(); ++r) {
        const auto& rank = ranks[r];
        outputs[r].push_back(EchoQueries(*rank->call, lane, owned));
        const LaneOutput& output = outputs[r].back();
        ASSERT_TRUE(device
                        .CopyHeads(params, OutputPackCopyJobs(*rank->call, lane,
                                                              output))
                        .ok());
        segments.push_back(OutputSegments(*rank->call, lane, output));
      }
      Exchange(segments);
      for (size_t r = 0; r < ranks.size(); ++r) {
        ASSERT_TRUE(
            device
                .CopyHeads(params, OutputUnpackCopyJobs(*ranks[r]->call, lane,
                                                        outputs[r][lane]))
                .ok());
      }
    }
    std::vector<ExchangeSegments> segments;
    segments.reserve(ranks.size());
    for (size_t r = 0; r < ranks.size(); ++r) {
      segments.push_back(TextSegments(*ranks[r]->call, outputs[r]));
    }
    Exchange(segments);
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto& rank = ranks[r];
      ASSERT_TRUE(
          device.CopyHeads(params, TextUnpackJobs(*rank->call, outputs[r]))
              .ok());
      EXPECT_EQ(rank->image_output, rank->image[kQuery]);
      // Valid rows only: the others stay as they were.
      std::vector<float> expected(rank->text[kQuery].size(), -1);
      const int64_t row = plan.shape.num_heads * plan.shape.head_dim;
      for (int64_t b = 0; b < plan.shape.batch; ++b) {
        const int64_t begin = b * plan.shape.text_tokens * row;
        std::copy_n(rank->text[kQuery].begin() + begin,
                    plan.shape.valid_text_tokens[b] * row,
                    expected.begin() + begin);
      }
      EXPECT_EQ(rank->text_output, expected);
    }
  }
}

}  // namespace
}  // namespace ithaca
