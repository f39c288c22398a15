#include "core/sequence_parallel_plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace ithaca {

namespace {

int64_t CeilDivide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// The kv heads that query heads `heads` need; at `empty_begin` if they are
// none. Hkv divides Hq, so floor(h * Hkv / Hq) = floor(h / (Hq / Hkv)), which
// can't overflow.
Range KvHeadsOf(Range heads, int64_t group_size, int64_t empty_begin) {
  if (heads.size == 0) return {empty_begin, 0};
  const int64_t first = heads.begin / group_size;
  const int64_t last = (heads.end() - 1) / group_size;
  return {first, last - first + 1};
}

std::vector<Lane> SplitIntoLanes(Range query_heads, Range kv_heads,
                                 int64_t group_size, int num_lanes) {
  std::vector<Lane> lanes;
  lanes.reserve(num_lanes);
  int64_t kv_begin = kv_heads.begin;
  for (int i = 0; i < num_lanes; ++i) {
    const Range part = EvenShare(query_heads.size, num_lanes, i);
    Lane lane;
    lane.query_heads = {query_heads.begin + part.begin, part.size};
    const int64_t kv_end = std::max(
        kv_begin, KvHeadsOf(lane.query_heads, group_size, kv_begin).end());
    lane.new_kv_heads = {kv_begin, kv_end - kv_begin};
    kv_begin = kv_end;
    lanes.push_back(lane);
  }
  return lanes;
}

HeadSchedule ResolveSchedule(const AttentionShape& shape, HeadSchedule asked,
                             int world_size, const PlanPolicy& policy) {
  if (asked != HeadSchedule::kAuto) return asked;
  // A lone rank has no exchange to hide.
  const bool per_head = world_size > 1 &&
                        world_size >= policy.auto_per_head_min_ranks &&
                        shape.query_tokens() >= policy.auto_per_head_min_tokens;
  return per_head ? HeadSchedule::kPerHead : HeadSchedule::kFused;
}

// FNV-1a over 64-bit words, each mixed first so that neighbouring small values
// differ in all bits. The same on every host, unlike absl::Hash.
class Fingerprinter {
 public:
  void Add(uint64_t word) {
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    word ^= word >> 31;
    hash_ = (std::rotl(hash_, 23) ^ word) * 0x100000001b3u;
  }
  void Add(Range range) {
    Add(static_cast<uint64_t>(range.begin));
    Add(static_cast<uint64_t>(range.size));
  }
  template <typename Enum>
  void AddEnum(Enum value) {
    Add(static_cast<uint64_t>(value));
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

void AddShape(const AttentionShape& shape, Fingerprinter& to) {
  to.AddEnum(shape.dtype);
  for (const int64_t value :
       {shape.batch, shape.image_tokens, shape.text_tokens, shape.num_heads,
        shape.num_kv_heads, shape.head_dim}) {
    to.Add(static_cast<uint64_t>(value));
  }
  to.Add(shape.valid_text_tokens.size());
  for (const int64_t valid : shape.valid_text_tokens) {
    to.Add(static_cast<uint64_t>(valid));
  }
  to.AddEnum(shape.order);
  to.AddEnum(shape.image_queries_only);
}

}  // namespace

Range EvenShare(int64_t total, int64_t parts, int64_t index) {
  const int64_t share = total / parts;
  const int64_t larger = total % parts;
  return {index * share + std::min(index, larger), share + (index < larger)};
}

std::vector<HeadRun> SplitIntoHeadRuns(Range heads, int64_t num_heads,
                                       int64_t num_kv_heads) {
  const int64_t group = num_heads / num_kv_heads;
  std::vector<HeadRun> runs;
  int64_t begin = heads.begin;
  while (begin < heads.end()) {
    const int64_t left = heads.end() - begin;
    const int64_t group_rest = group - begin % group;
    // Whole groups go together; what is cut from a group goes alone.
    const bool whole = group_rest == group && left >= group;
    const int64_t size =
        whole ? left - left % group : std::min(left, group_rest);
    runs.push_back({{begin, size}, {begin / group, whole ? size / group : 1}});
    begin += size;
  }
  return runs;
}

int SequenceParallelPlan::NumExchanges() const {
  return 2 * num_lanes + (shape.text_query_tokens() > 0 ? 1 : 0);
}

uint64_t SequenceParallelPlan::Fingerprint() const {
  Fingerprinter fingerprint;
  AddShape(shape, fingerprint);
  fingerprint.Add(std::bit_cast<uint64_t>(options.softmax_scale));
  fingerprint.AddEnum(options.precision);
  fingerprint.AddEnum(options.schedule);
  fingerprint.AddEnum(options.kernel);
  fingerprint.Add(static_cast<uint64_t>(world_size));
  fingerprint.Add(static_cast<uint64_t>(num_lanes));
  fingerprint.Add(ranks.size());
  for (const RankShare& rank : ranks) {
    fingerprint.Add(rank.image_tokens);
    fingerprint.Add(rank.query_heads);
    fingerprint.Add(rank.kv_heads);
    fingerprint.Add(rank.lanes.size());
    for (const Lane& lane : rank.lanes) {
      fingerprint.Add(lane.query_heads);
      fingerprint.Add(lane.new_kv_heads);
    }
  }
  return fingerprint.hash();
}

absl::StatusOr<SequenceParallelPlan> MakeSequenceParallelPlan(
    const AttentionShape& shape, const AttentionOptions& options,
    int world_size, const PlanPolicy& policy) {
  if (auto status = Validate(shape); !status.ok()) return status;
  if (!std::isfinite(options.softmax_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("options.softmax_scale: expected a finite number, got ",
                     options.softmax_scale));
  }
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: expected at least 1, got ", world_size));
  }

  SequenceParallelPlan plan;
  plan.shape = shape;
  plan.options = options;
  plan.options.schedule =
      ResolveSchedule(shape, options.schedule, world_size, policy);
  plan.world_size = world_size;
  if (plan.options.schedule == HeadSchedule::kPerHead) {
    const int64_t most_heads = CeilDivide(shape.num_heads, world_size);
    plan.num_lanes = static_cast<int>(std::min(
        CeilDivide(most_heads, std::max<int64_t>(policy.heads_per_lane, 1)),
        SequenceParallelPlan::kMaxLanes));
  }

  const int64_t group_size = shape.num_heads / shape.num_kv_heads;
  plan.ranks.reserve(world_size);
  for (int r = 0; r < world_size; ++r) {
    RankShare share;
    share.image_tokens = EvenShare(shape.image_tokens, world_size, r);
    share.query_heads = EvenShare(shape.num_heads, world_size, r);
    share.kv_heads =
        KvHeadsOf(share.query_heads, group_size, shape.num_kv_heads);
    share.lanes = SplitIntoLanes(share.query_heads, share.kv_heads, group_size,
                                 plan.num_lanes);
    plan.ranks.push_back(std::move(share));
  }
  return plan;
}

}  // namespace ithaca
