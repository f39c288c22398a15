#include "worker/attention_pieces.h"

#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"

namespace ithaca {
namespace {

int LaneThatBrings(const RankShare& share, int64_t kv_head) {
  int lane = 0;
  while (share.lanes[lane].new_kv_heads.end() <= kv_head) ++lane;
  return lane;
}

}  // namespace

std::vector<AttentionPiece> SplitIntoAttentionPieces(
    const SequenceParallelPlan& plan, int rank, int lane) {
  const RankShare& share = plan.ranks[rank];
  std::vector<AttentionPiece> pieces;
  for (const HeadRun& run :
       SplitIntoHeadRuns(share.lanes[lane].query_heads, plan.shape.num_heads,
                         plan.shape.num_kv_heads)) {
    const int64_t repeats = run.query_heads.size / run.kv_heads.size;
    int64_t kv_head = run.kv_heads.begin;
    while (kv_head < run.kv_heads.end()) {
      AttentionPiece piece;
      piece.kv_lane = LaneThatBrings(share, kv_head);
      piece.kv_heads.begin = kv_head;
      while (kv_head < run.kv_heads.end() &&
             kv_head < share.lanes[piece.kv_lane].new_kv_heads.end()) {
        ++kv_head;
      }
      piece.kv_heads.size = kv_head - piece.kv_heads.begin;
      piece.query_heads = {
          run.query_heads.begin +
              (piece.kv_heads.begin - run.kv_heads.begin) * repeats,
          piece.kv_heads.size * repeats};
      pieces.push_back(piece);
    }
  }
  return pieces;
}

}  // namespace ithaca
