#ifndef ITHACA_CORE_SEQUENCE_PARALLEL_PLAN_H_
#define ITHACA_CORE_SEQUENCE_PARALLEL_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"

// How one call is split over the ranks of a group (DeepSpeed-Ulysses: image
// tokens by sequence outside attention, heads inside it).
//
//   image share of rank r   S_r = floor(S / P) + (r < S mod P), contiguous
//   query heads of rank r   H_r = floor(Hq / P) + (r < Hq mod P), contiguous
//   kv heads of rank r      [floor(h0 * Hkv / Hq), floor((h1 - 1) * Hkv / Hq)]
//                           for its query heads [h0, h1)
//
// Pure: the coordinator and every rank compute it from the same shape, and
// nothing else decides a share. Source: DeepSpeed-Ulysses (arXiv:2309.14509)
// section 3; uneven shares, GQA ranges and lanes are ours.

namespace ithaca {

// [begin, begin + size).
struct Range {
  int64_t begin = 0;
  int64_t size = 0;

  int64_t end() const { return begin + size; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Part `index` of `total` items cut into `parts` contiguous shares, the first
// total % parts of them one larger. REQUIRES: total >= 0, 0 <= index < parts.
Range EvenShare(int64_t total, int64_t parts, int64_t index);

// Consecutive query heads that share key/value heads evenly: query head
// q.begin + i attends with kv head kv.begin + i / (q.size / kv.size).
// q.size % kv.size == 0. Both ranges are global head indices.
struct HeadRun {
  Range query_heads;
  Range kv_heads;
  friend bool operator==(const HeadRun&, const HeadRun&) = default;
};

// The query heads `heads` of a call with Hq and Hkv heads as runs, in order:
// at most a partial group, all whole groups, and a partial group.
std::vector<HeadRun> SplitIntoHeadRuns(Range heads, int64_t num_heads,
                                       int64_t num_kv_heads);

// What one rank exchanges and attends in one lane. A call has the same number
// of lanes on every rank; a rank out of heads has empty ranges and still takes
// part in the lane's exchanges.
struct Lane {
  Range query_heads;
  // KV heads that arrive with this lane: those its query heads need and no
  // earlier lane of the rank brought.
  Range new_kv_heads;
  friend bool operator==(const Lane&, const Lane&) = default;
};

struct RankShare {
  Range image_tokens;
  Range query_heads;
  Range kv_heads;
  std::vector<Lane> lanes;  // num_lanes entries; concatenated = the ranges
};

struct SequenceParallelPlan {
  // More heads than heads_per_lane times this make larger lanes, so that a
  // plan's size is bounded whatever number of heads a caller sends.
  static constexpr int64_t kMaxLanes = 1024;

  AttentionShape shape;
  AttentionOptions options;  // schedule is kFused or kPerHead
  int world_size = 1;
  int num_lanes = 1;
  std::vector<RankShare> ranks;  // world_size entries, by rank

  // Exchanges a call costs: 2 * num_lanes, and 1 more for text queries.
  int NumExchanges() const;
  // 64-bit hash of every field; equal on ranks that agree.
  uint64_t Fingerprint() const;
};

struct PlanPolicy {
  // Query heads a per-head lane holds at most on each rank. 1 on CPU; more on
  // GPUs, whose waves one head does not fill.
  int64_t heads_per_lane = 1;
  // AUTO chooses kPerHead when there are at least this many ranks ...
  int auto_per_head_min_ranks = 2;
  // ... and this many query tokens: below it the fixed cost of an exchange is
  // more than what overlap hides.
  int64_t auto_per_head_min_tokens = 16384;
};

// kInvalidArgument if Validate(shape) fails, the scale is not finite or
// world_size < 1. Cost: O(world_size * num_lanes).
absl::StatusOr<SequenceParallelPlan> MakeSequenceParallelPlan(
    const AttentionShape& shape, const AttentionOptions& options,
    int world_size, const PlanPolicy& policy = {});

}  // namespace ithaca

#endif  // ITHACA_CORE_SEQUENCE_PARALLEL_PLAN_H_
