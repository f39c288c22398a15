#ifndef ITHACA_WORKER_ULYSSES_LAYOUT_H_
#define ITHACA_WORKER_ULYSSES_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"

// Where one rank keeps what of a call, as byte offsets into one block of
// memory. Pure.
//
// Symbols beside those of core/attention_call.h: r this rank, d a rank it
// sends to, s a rank it receives from; per lane, h_x query heads and g_x new
// kv heads of rank x; Tmax = max V[b], Tq = Tmax or 0 (image_queries_only).

namespace ithaca {

// Rows of several tensors in 8 bits, as one message: all payloads, then all
// scales, every part aligned to 16 bytes.
struct QuantizedBlock {
  struct Part {
    int64_t payload = 0;  // offsets in the block
    int64_t scales = 0;
  };
  std::vector<Part> parts;  // by tensor
  int64_t bytes = 0;        // 0 if no tensor has a row
};

// `rows` of each tensor, one row being a token's head: D payload bytes and a
// float32 scale.
QuantizedBlock MakeQuantizedBlock(const std::vector<int64_t>& rows,
                                  int64_t head_dim);

// Buffers of one lane. Entries by rank are kNone for ranks without one.
struct LaneLayout {
  static constexpr int64_t kNone = -1;

  // What is attended: image tokens in global order, then valid text.
  int64_t query = kNone;  // [B, S + Tq, h_r, D]
  int64_t key = kNone;    // [B, S + Tmax, g_r, D]
  int64_t value = kNone;  // as key
  // To rank d. NATIVE: query [B, S_r, h_d, D], then key and value
  // [B, S_r, g_d, D]; none for r. Else a QuantizedBlock of the three, also for
  // r itself.
  std::vector<int64_t> send;
  // From rank s, 8-bit only: a QuantizedBlock; r's own is `send[r]`.
  std::vector<int64_t> receive;

  // The attention's output [B, S + Tq, h_r, D] put together, where it comes
  // in several pieces.
  int64_t output = kNone;
  // To rank d, 8-bit only, also for r: a QuantizedBlock of [B, S_d, h_r, D].
  std::vector<int64_t> output_send;
  // From rank s: [B, S_r, h_s, D] or a QuantizedBlock of it; none for r.
  std::vector<int64_t> output_receive;
};

struct UlyssesLayout {
  std::vector<LaneLayout> lanes;
  // The caller's tensors are attended where they lie: no lane has query, key
  // and value of its own.
  bool inputs_in_place = false;
  // From rank s, with text queries: by lane, by batch element, [V[b], h_s, D].
  std::vector<int64_t> text_receive;
  int64_t bytes = 0;  // of all
};

// REQUIRES: 0 <= rank < plan.world_size; inputs_in_place only where
// InputsLieJoined (worker/scatter_heads.h).
UlyssesLayout MakeUlyssesLayout(const SequenceParallelPlan& plan, int rank,
                                bool inputs_in_place = false);

// The blocks above, of what `from` sends to `to` in a lane.
QuantizedBlock QuantizedInputs(const SequenceParallelPlan& plan, int lane,
                               int from, int to);
QuantizedBlock QuantizedOutputs(const SequenceParallelPlan& plan, int lane,
                                int from, int to);

// Tmax, Tq and the sum of V.
int64_t MaxValidText(const AttentionShape& shape);
int64_t MaxValidTextQueries(const AttentionShape& shape);
int64_t TotalValidText(const AttentionShape& shape);

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_LAYOUT_H_
