#include "worker/ulysses_layout.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "worker/arena.h"
#include "worker/attention_pieces.h"

namespace ithaca {
namespace {

constexpr int64_t kPartAlignment = 16;

int64_t AlignPart(int64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Gives out places one behind the other.
class Places {
 public:
  int64_t Add(int64_t bytes) {
    if (bytes == 0) return LaneLayout::kNone;
    const int64_t place = end_;
    end_ += Arena::AlignedSize(bytes);
    return place;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

class LayoutMaker {
 public:
  LayoutMaker(const SequenceParallelPlan& plan, int rank, bool inputs_in_place)
      : plan_(plan),
        shape_(plan.shape),
        rank_(rank),
        inputs_in_place_(inputs_in_place),
        quantized_(plan.options.precision != CommunicationPrecision::kNative) {}

  UlyssesLayout Make() {
    UlyssesLayout layout;
    layout.inputs_in_place = inputs_in_place_;
    for (int lane = 0; lane < plan_.num_lanes; ++lane) {
      layout.lanes.push_back(MakeLane(lane));
    }
    layout.text_receive.assign(plan_.world_size, LaneLayout::kNone);
    if (plan_.world_size > 1 && shape_.text_query_tokens() > 0) {
      const int64_t tokens = TotalValidText(shape_);
      for (int s = 0; s < plan_.world_size; ++s) {
        if (s == rank_) continue;
        layout.text_receive[s] =
            places_.Add(RowBytes(tokens, plan_.ranks[s].query_heads.size));
      }
    }
    layout.bytes = places_.end();
    return layout;
  }

 private:
  int64_t RowBytes(int64_t tokens, int64_t heads) const {
    return tokens * heads * shape_.head_dim * ByteSize(shape_.dtype);
  }

  LaneLayout MakeLane(int index) {
    const Lane& own = plan_.ranks[rank_].lanes[index];
    const int64_t own_tokens =
        shape_.batch * plan_.ranks[rank_].image_tokens.size;
    const int64_t queries =
        shape_.batch * (shape_.image_tokens + MaxValidTextQueries(shape_));
    const int64_t keys =
        shape_.batch * (shape_.image_tokens + MaxValidText(shape_));
    LaneLayout lane;
    if (!inputs_in_place_) {
      lane.query = places_.Add(RowBytes(queries, own.query_heads.size));
      lane.key = places_.Add(RowBytes(keys, own.new_kv_heads.size));
      lane.value = places_.Add(RowBytes(keys, own.new_kv_heads.size));
    }
    if (SplitIntoAttentionPieces(plan_, rank_, index).size() > 1) {
      lane.output = places_.Add(RowBytes(queries, own.query_heads.size));
    }
    for (int peer = 0; peer < plan_.world_size; ++peer) {
      const Lane& theirs = plan_.ranks[peer].lanes[index];
      const bool self = peer == rank_;
      int64_t send = 0;
      int64_t receive = 0;
      int64_t output_send = 0;
      int64_t output_receive = 0;
      if (quantized_) {
        send = QuantizedInputs(plan_, index, rank_, peer).bytes;
        receive = QuantizedInputs(plan_, index, peer, rank_).bytes;
        output_send = QuantizedOutputs(plan_, index, rank_, peer).bytes;
        output_receive = QuantizedOutputs(plan_, index, peer, rank_).bytes;
      } else if (!self) {
        send = RowBytes(own_tokens,
                        theirs.query_heads.size + 2 * theirs.new_kv_heads.size);
        output_receive = RowBytes(own_tokens, theirs.query_heads.size);
      }
      lane.send.push_back(places_.Add(send));
      lane.receive.push_back(places_.Add(self ? 0 : receive));
      lane.output_send.push_back(places_.Add(output_send));
      lane.output_receive.push_back(places_.Add(self ? 0 : output_receive));
    }
    return lane;
  }

  const SequenceParallelPlan& plan_;
  const AttentionShape& shape_;
  const int rank_;
  const bool inputs_in_place_;
  const bool quantized_;
  Places places_;
};

}  // namespace

QuantizedBlock MakeQuantizedBlock(const std::vector<int64_t>& rows,
                                  int64_t head_dim) {
  QuantizedBlock block;
  block.parts.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    block.parts[i].payload = block.bytes;
    block.bytes += AlignPart(rows[i] * head_dim);
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    block.parts[i].scales = block.bytes;
    block.bytes += AlignPart(rows[i] * int64_t{sizeof(float)});
  }
  return block;
}

UlyssesLayout MakeUlyssesLayout(const SequenceParallelPlan& plan, int rank,
                                bool inputs_in_place) {
  return LayoutMaker(plan, rank, inputs_in_place).Make();
}

QuantizedBlock QuantizedInputs(const SequenceParallelPlan& plan, int lane,
                               int from, int to) {
  const int64_t tokens = plan.shape.batch * plan.ranks[from].image_tokens.size;
  const Lane& theirs = plan.ranks[to].lanes[lane];
  return MakeQuantizedBlock(
      {tokens * theirs.query_heads.size, tokens * theirs.new_kv_heads.size,
       tokens * theirs.new_kv_heads.size},
      plan.shape.head_dim);
}

QuantizedBlock QuantizedOutputs(const SequenceParallelPlan& plan, int lane,
                                int from, int to) {
  const int64_t tokens = plan.shape.batch * plan.ranks[to].image_tokens.size;
  return MakeQuantizedBlock(
      {tokens * plan.ranks[from].lanes[lane].query_heads.size},
      plan.shape.head_dim);
}

int64_t MaxValidText(const AttentionShape& shape) {
  return *std::max_element(shape.valid_text_tokens.begin(),
                           shape.valid_text_tokens.end());
}

int64_t MaxValidTextQueries(const AttentionShape& shape) {
  return shape.image_queries_only ? 0 : MaxValidText(shape);
}

int64_t TotalValidText(const AttentionShape& shape) {
  return std::accumulate(shape.valid_text_tokens.begin(),
                         shape.valid_text_tokens.end(), int64_t{0});
}

}  // namespace ithaca
