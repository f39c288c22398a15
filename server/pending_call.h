#ifndef ITHACA_SERVER_PENDING_CALL_H_
#define ITHACA_SERVER_PENDING_CALL_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/attention_call.h"
#include "ithaca/v1/attention.pb.h"
#include "server/byte_budget.h"
#include "server/memory_region.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

class RankStreams;

// What the ranks made of a call.
struct CallOutcome {
  TensorBytes output;  // query's shape and dtype, in the caller's token order
  ithaca::v1::ExecutionReport report;  // all but total_seconds
  int64_t communication_bytes = 0;     // of all ranks together
  // Of a streamed call: its output, which is still with the ranks, counts until
  // the client has it.
  ByteBudget::Reservation reservation;
  double slowest_rank_seconds = 0;  // the largest RankExecution.total_seconds
};

// A checked and admitted call, from the queue to its end. It ends exactly
// once, by whoever is first: the ranks, the loss of its group, its client.
//
// Thread-safety: Finish, Abandon and ended may be called at any time; the rest
// is written before the call is submitted and by the scheduler alone after.
class PendingCall {
 public:
  // Called once, with no lock held, by the thread that ends the call.
  using EndFunction = std::function<void(absl::StatusOr<CallOutcome>)>;

  explicit PendingCall(EndFunction on_end) : on_end_(std::move(on_end)) {}
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  std::string request_id;
  AttentionShape shape;      // valid
  AttentionOptions options;  // valid
  CallTensors tensors;       // of exactly the shape's sizes
  CallRegions regions;       // and what is not among the tensors
  ByteBudget::Reservation reservation;
  absl::Time deadline = absl::InfiniteFuture();
  absl::Time queued_at = absl::InfinitePast();
  bool retried = false;

  // A streamed call: its inputs go to the ranks of one generation of a group
  // before it queues, and it can run nowhere else.
  bool bound() const { return !group.empty(); }
  std::string group;  // set by GroupScheduler::Bind
  uint64_t generation = 0;
  std::shared_ptr<RankStreams> streams;  // set before it is submitted

  bool ended() const { return ended_.load(std::memory_order_acquire); }

  // Ends the call if it has not ended; its tensors are no longer in use, and
  // their bytes go back to the budget, and its regions are let go, before the
  // caller hears of the end.
  void Finish(absl::StatusOr<CallOutcome> outcome) {
    reservation.Release();
    // Not the rest of it, which may be being read.
    regions.holds.clear();
    Abandon(std::move(outcome));
  }

  // Ends the call towards its client while its group may still work on it.
  void Abandon(absl::StatusOr<CallOutcome> outcome) {
    if (ended_.exchange(true, std::memory_order_acq_rel)) return;
    // What the function holds must not outlive the end.
    const EndFunction on_end = std::move(on_end_);
    on_end(std::move(outcome));
  }

 private:
  std::atomic<bool> ended_{false};
  EndFunction on_end_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_PENDING_CALL_H_
