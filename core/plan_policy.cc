#include "core/plan_policy.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

namespace ithaca {

namespace {

// Measured on one H200 (docs/measurements/h200.md), but for the exchange: that
// is NCCL's published rate within one host of eight.
constexpr double kAttentionFlopsPerSecond = 650e12;
constexpr double kExchangeBytesPerSecond = 300e9;
constexpr double kTileRows = 128;
constexpr double kMultiprocessors = 132;
// What an exchange, and a lane's kernels, cost however small they are: launches
// and one stream's wait for the other.
constexpr double kExchangeSeconds = 20e-6;
constexpr double kLaneSeconds = 40e-6;

// More lanes than this only add fixed costs: the first and the last of them
// are what stays exposed, and they are small by then.
constexpr int64_t kMostLanes = 8;

// What one more lane must make of the time to be taken, and what lanes at all
// must make of it to be AUTO's choice: the model is no better than that.
constexpr double kWorthALane = 0.995;
constexpr double kWorthLanes = 0.98;

double LaneAttentionSeconds(const AttentionShape& shape, double heads) {
  const auto queries = static_cast<double>(shape.query_tokens());
  const auto keys = static_cast<double>(shape.key_tokens());
  const auto head_dim = static_cast<double>(shape.head_dim);
  const double tiles = heads * std::ceil(queries / kTileRows);
  const double waves = std::ceil(tiles / kMultiprocessors);
  const double wave_flops = 4 * kTileRows * kMultiprocessors * keys * head_dim;
  // Batch elements run one after the other.
  return static_cast<double>(shape.batch) * waves * wave_flops /
             kAttentionFlopsPerSecond +
         kLaneSeconds;
}

// From first byte sent to last byte received, of a rank with `heads` heads in
// `num_lanes` lanes.
double CallSeconds(const AttentionShape& shape, int world_size, int64_t heads,
                   int64_t num_lanes) {
  const double head_bytes =
      static_cast<double>(shape.batch) *
      static_cast<double>(shape.image_tokens) / world_size * (world_size - 1) *
      static_cast<double>(shape.head_dim * ByteSize(shape.dtype));
  const double kv_share = static_cast<double>(shape.num_kv_heads) /
                          static_cast<double>(shape.num_heads);
  const double in_seconds =
      head_bytes * (1 + 2 * kv_share) / kExchangeBytesPerSecond;
  const double out_seconds = head_bytes / kExchangeBytesPerSecond;
  const double all_received = in_seconds * static_cast<double>(heads) +
                              kExchangeSeconds * static_cast<double>(num_lanes);
  double received = 0;
  double attended = 0;
  // The exchanges back queue behind all those in.
  double returned = all_received;
  for (int64_t i = 0; i < num_lanes; ++i) {
    const auto lane = static_cast<double>(EvenShare(heads, num_lanes, i).size);
    received += in_seconds * lane + kExchangeSeconds;
    attended = std::max(attended, received) + LaneAttentionSeconds(shape, lane);
    returned =
        std::max(returned, attended) + out_seconds * lane + kExchangeSeconds;
  }
  return returned;
}

}  // namespace

PlanPolicy PlanPolicyFor(std::string_view device, const AttentionShape& shape,
                         int world_size) {
  PlanPolicy policy;
  if (device.substr(0, 4) != "cuda" || world_size < 2) return policy;
  const int64_t heads =
      EvenShare(std::max<int64_t>(shape.num_heads, 1), world_size, 0).size;
  const double fused_seconds = CallSeconds(shape, world_size, heads, 1);
  // Who asks for lanes gets at least two, fused or not the better choice.
  int64_t best_lanes = std::min<int64_t>(heads, 2);
  double best_seconds = CallSeconds(shape, world_size, heads, best_lanes);
  for (int64_t lanes = best_lanes + 1; lanes <= std::min(heads, kMostLanes);
       ++lanes) {
    const double seconds = CallSeconds(shape, world_size, heads, lanes);
    if (seconds < best_seconds * kWorthALane) {
      best_lanes = lanes;
      best_seconds = seconds;
    }
  }
  policy.heads_per_lane = (heads + best_lanes - 1) / best_lanes;
  policy.auto_per_head_min_ranks = 2;
  policy.auto_per_head_min_tokens =
      best_lanes > 1 && best_seconds < fused_seconds * kWorthLanes
          ? 0
          : std::numeric_limits<int64_t>::max();
  return policy;
}

}  // namespace ithaca
