#ifndef ITHACA_WORKER_ATTENTION_PIECES_H_
#define ITHACA_WORKER_ATTENTION_PIECES_H_

#include <vector>

#include "core/sequence_parallel_plan.h"

namespace ithaca {

// Query heads of one lane that attend in one kernel call: they share key/value
// heads evenly, and those arrived together. Heads are global indices.
struct AttentionPiece {
  Range query_heads;
  Range kv_heads;   // query_heads.size % kv_heads.size == 0
  int kv_lane = 0;  // the lane, this or an earlier one, that brought them
  friend bool operator==(const AttentionPiece&,
                         const AttentionPiece&) = default;
};

// The lane's query heads on that rank as pieces, in head order; none if it has
// no heads. With equal shares and one lane it is one piece.
std::vector<AttentionPiece> SplitIntoAttentionPieces(
    const SequenceParallelPlan& plan, int rank, int lane);

}  // namespace ithaca

#endif  // ITHACA_WORKER_ATTENTION_PIECES_H_
