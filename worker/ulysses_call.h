#ifndef ITHACA_WORKER_ULYSSES_CALL_H_
#define ITHACA_WORKER_ULYSSES_CALL_H_

#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "worker/attention_kernel.h"
#include "worker/attention_pieces.h"
#include "worker/communicator.h"
#include "worker/ulysses_layout.h"

namespace ithaca {

// A rank's inputs, on its device, dense, the call's dtype.
struct RankInputs {
  const void* image_query = nullptr;  // [B, S_r, Hq, D]
  const void* image_key = nullptr;    // [B, S_r, Hkv, D]
  const void* image_value = nullptr;  // [B, S_r, Hkv, D]
  const void* text_query =
      nullptr;                     // [B, T, Hq, D]; none if image_queries_only
  const void* text_key = nullptr;  // [B, T, Hkv, D]
  const void* text_value = nullptr;  // [B, T, Hkv, D]
};

// A rank's outputs, on its device, dense, written whole.
struct RankOutputs {
  void* image = nullptr;  // [B, S_r, Hq, D]
  void* text = nullptr;   // [B, T, Hq, D], the same on every rank; or none
};

// One call as one rank sees it: what the stages of Ulysses attention work on.
// Plain pointers; everything outlives it.
struct UlyssesCall {
  const SequenceParallelPlan& plan;
  const UlyssesLayout& layout;
  int rank = 0;
  char* memory = nullptr;  // layout.bytes
  RankInputs inputs;
  RankOutputs outputs;

  const AttentionShape& shape() const { return plan.shape; }
  const RankShare& share(int of) const { return plan.ranks[of]; }
  const RankShare& share() const { return plan.ranks[rank]; }
  bool quantized() const {
    return plan.options.precision != CommunicationPrecision::kNative;
  }
  // Bytes of `heads` heads of one token.
  int64_t TokenBytes(int64_t heads) const {
    return heads * shape().head_dim * ByteSize(shape().dtype);
  }
  // At a place of the layout; nullptr for LaneLayout::kNone.
  char* At(int64_t place) const {
    return place == LaneLayout::kNone ? nullptr : memory + place;
  }
};

// What goes to, and comes from, the other ranks in one exchange.
struct ExchangeSegments {
  std::vector<SendSegment> sends;
  std::vector<RecvSegment> recvs;
};

// A lane's attention on this rank: results[piece * B + b], each
// [S + text queries of b, heads of the piece, D], dense; empty where a batch
// element has no query row.
struct LaneOutput {
  std::vector<AttentionPiece> pieces;
  std::vector<AttentionResult> results;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_CALL_H_
