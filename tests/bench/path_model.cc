#include "tests/bench/path_model.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "core/attention_call.h"
#include "core/data_type.h"

namespace ithaca::bench {

namespace {

constexpr int64_t kScaleBytes = 4;

// Rank 0's bytes and operations, lane by lane.
class Rank {
 public:
  explicit Rank(const SequenceParallelPlan& plan)
      : plan_(plan),
        own_(plan.ranks[0]),
        native_(plan.options.precision == CommunicationPrecision::kNative),
        row_bytes_(plan.shape.head_dim * ByteSize(plan.shape.dtype)),
        wire_row_bytes_(native_ ? row_bytes_
                                : plan.shape.head_dim + kScaleBytes) {}

  double AttentionFlops(int64_t heads) const {
    const AttentionShape& shape = plan_.shape;
    double pairs = 0;
    for (const int64_t valid : shape.valid_text_tokens) {
      const auto keys = static_cast<double>(shape.image_tokens + valid);
      pairs += keys * (shape.image_queries_only
                           ? static_cast<double>(shape.image_tokens)
                           : keys);
    }
    return 4 * pairs * static_cast<double>(heads * shape.head_dim);
  }

  int64_t BytesIn(int lane) const {
    int64_t sent = 0;
    int64_t received_rows = 0;
    for (size_t peer = 1; peer < plan_.ranks.size(); ++peer) {
      sent += Rows(own_) * HeadsIn(peer, lane);
      received_rows += Rows(plan_.ranks[peer]);
    }
    return std::max(sent, received_rows * HeadsIn(0, lane)) * wire_row_bytes_;
  }

  int64_t BytesBack(int lane) const {
    int64_t received = 0;
    int64_t sent_rows = 0;
    for (size_t peer = 1; peer < plan_.ranks.size(); ++peer) {
      received += Rows(own_) * QueryHeads(peer, lane);
      sent_rows += Rows(plan_.ranks[peer]);
    }
    return std::max(received, sent_rows * QueryHeads(0, lane)) *
           wire_row_bytes_;
  }

  // Text is never quantised.
  int64_t BytesOfText() const {
    const int64_t others = plan_.shape.num_heads - own_.query_heads.size;
    return plan_.shape.batch * plan_.shape.text_query_tokens() * others *
           row_bytes_;
  }

  // Bytes read plus written by the four layout stages and for the text.
  int64_t PackBytes(int lane) const {
    int64_t heads = 0;
    for (size_t peer = 0; peer < plan_.ranks.size(); ++peer) {
      heads += HeadsIn(peer, lane);
    }
    return Rows(own_) * heads * (row_bytes_ + wire_row_bytes_) +
           TextRows() * HeadsIn(0, lane) * 2 * row_bytes_;
  }
  int64_t UnpackBytes(int lane) const {
    return native_ ? 0
                   : ImageRows() * HeadsIn(0, lane) *
                         (row_bytes_ + wire_row_bytes_);
  }
  int64_t OutputPackBytes(int lane) const {
    return native_ ? 0
                   : ImageRows() * QueryHeads(0, lane) *
                         (row_bytes_ + wire_row_bytes_);
  }
  int64_t OutputUnpackBytes(int lane) const {
    int64_t heads = 0;
    for (size_t peer = 0; peer < plan_.ranks.size(); ++peer) {
      heads += QueryHeads(peer, lane);
    }
    return Rows(own_) * heads * (row_bytes_ + wire_row_bytes_);
  }
  int64_t TextUnpackBytes() const {
    return plan_.shape.batch * plan_.shape.text_query_tokens() *
           plan_.shape.num_heads * 2 * row_bytes_;
  }

  int64_t QueryHeads(size_t rank, int lane) const {
    return LaneOf(rank, lane).query_heads.size;
  }

 private:
  const Lane& LaneOf(size_t rank, int lane) const {
    return plan_.ranks[rank].lanes[static_cast<size_t>(lane)];
  }
  int64_t HeadsIn(size_t rank, int lane) const {
    const Lane& of = LaneOf(rank, lane);
    return of.query_heads.size + 2 * of.new_kv_heads.size;
  }
  int64_t Rows(const RankShare& share) const {
    return plan_.shape.batch * share.image_tokens.size;
  }
  int64_t ImageRows() const {
    return plan_.shape.batch * plan_.shape.image_tokens;
  }
  int64_t TextRows() const {
    return plan_.shape.batch * plan_.shape.text_tokens;
  }

  const SequenceParallelPlan& plan_;
  const RankShare& own_;
  const bool native_;
  const int64_t row_bytes_;
  const int64_t wire_row_bytes_;
};

// The two streams of a rank, each at the time when it has done what it was
// given.
class Timeline {
 public:
  Timeline(const Rank& rank, const MachineRates& rates)
      : rank_(rank), rates_(rates) {}

  // UlyssesAttention's order.
  double Run(int num_lanes) {
    SendIn(0);
    for (int lane = 0; lane < num_lanes; ++lane) {
      if (lane + 1 < num_lanes) SendIn(lane + 1);
      while (FinishOldest() != Arrival{true, lane}) {
      }
      compute_ += rank_.AttentionFlops(rank_.QueryHeads(0, lane)) /
                  rates_.attention_flops_per_second;
      Layout(rank_.OutputPackBytes(lane));
      Exchange(rank_.BytesBack(lane), {false, lane});
    }
    if (rank_.BytesOfText() > 0) Exchange(rank_.BytesOfText(), {false, kText});
    while (!pending_.empty()) FinishOldest();
    return compute_;
  }

 private:
  static constexpr int kText = -1;

  struct Arrival {
    bool in = false;
    int lane = 0;
    bool operator==(const Arrival&) const = default;
  };
  struct Pending {
    Arrival arrival;
    double done = 0;
  };

  void Layout(int64_t bytes) {
    compute_ += static_cast<double>(bytes) / rates_.layout_bytes_per_second;
  }
  void Exchange(int64_t bytes, Arrival arrival) {
    exchange_ = std::max(exchange_, compute_) + rates_.exchange_seconds +
                static_cast<double>(bytes) / rates_.exchange_bytes_per_second;
    pending_.push_back({arrival, exchange_});
  }
  void SendIn(int lane) {
    Layout(rank_.PackBytes(lane));
    Exchange(rank_.BytesIn(lane), {true, lane});
  }
  Arrival FinishOldest() {
    const Pending oldest = pending_.front();
    pending_.pop_front();
    compute_ = std::max(compute_, oldest.done);
    const auto [in, lane] = oldest.arrival;
    Layout(in              ? rank_.UnpackBytes(lane)
           : lane == kText ? rank_.TextUnpackBytes()
                           : rank_.OutputUnpackBytes(lane));
    return oldest.arrival;
  }

  const Rank& rank_;
  const MachineRates& rates_;
  double compute_ = 0;
  double exchange_ = 0;
  std::deque<Pending> pending_;
};

}  // namespace

PathTimes PredictPath(const SequenceParallelPlan& plan,
                      const MachineRates& rates) {
  const Rank rank(plan);
  PathTimes times;
  times.attention = rank.AttentionFlops(plan.ranks[0].query_heads.size) /
                    rates.attention_flops_per_second;
  if (plan.world_size == 1) {
    times.path = times.attention;
    return times;
  }
  int64_t layout_bytes = rank.TextUnpackBytes();
  for (int lane = 0; lane < plan.num_lanes; ++lane) {
    layout_bytes += rank.PackBytes(lane) + rank.UnpackBytes(lane) +
                    rank.OutputPackBytes(lane) + rank.OutputUnpackBytes(lane);
    times.bytes_in += rank.BytesIn(lane);
    times.bytes_back += rank.BytesBack(lane);
  }
  times.image_bytes_back = times.bytes_back;
  times.bytes_back += rank.BytesOfText();
  times.layout =
      static_cast<double>(layout_bytes) / rates.layout_bytes_per_second;
  times.exchange_in =
      static_cast<double>(times.bytes_in) / rates.exchange_bytes_per_second;
  times.exchange_back =
      static_cast<double>(times.bytes_back) / rates.exchange_bytes_per_second;
  times.path = Timeline(rank, rates).Run(plan.num_lanes);
  return times;
}

double PredictCudaMemoryCall(const SequenceParallelPlan& plan,
                             const MachineRates& rates) {
  const AttentionShape& shape = plan.shape;
  int64_t remote_rows = 0;
  for (size_t rank = 1; rank < plan.ranks.size(); ++rank) {
    remote_rows += shape.batch * plan.ranks[rank].image_tokens.size;
  }
  const int64_t row = shape.head_dim * ByteSize(shape.dtype);
  const int64_t out_bytes = remote_rows * shape.num_heads * row;
  const int64_t in_bytes =
      out_bytes + remote_rows * 2 * shape.num_kv_heads * row;
  return static_cast<double>(in_bytes + out_bytes) /
             rates.client_bytes_per_second +
         PredictPath(plan, rates).path;
}

}  // namespace ithaca::bench
