#ifndef ITHACA_WORKER_GLOO_COMMUNICATOR_H_
#define ITHACA_WORKER_GLOO_COMMUNICATOR_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "worker/communicator.h"
#include "worker/gloo_mesh.h"
#include "worker/gloo_transfer.h"
#include "worker/rendezvous_store.h"

namespace ithaca {

struct GlooOptions {
  GlooAddress address;
  // Limit on Form, all ranks included.
  absl::Duration formation_timeout = absl::Seconds(30);
  // Limit on each wait for a peer. A rank that hangs is found by it alone; one
  // whose process ends is seen at once.
  absl::Duration collective_timeout = absl::Seconds(60);
};

// The group of CPU processes: TCP between each two ranks, through Gloo. Memory
// is the host's. Each peer's small segments of one exchange travel as one
// message; a message costs about half a round trip more than its bytes, since
// Gloo sends once the receiver has announced itself.
//
// Thread-safety and errors: see Communicator. Exceptions of Gloo do not leave.
// The first communicator of a process sets SIGPIPE to be ignored, unless the
// process has a handler for it.
class GlooCommunicator : public Communicator {
 public:
  // Blocks until all ranks are connected and have heard from each other. The
  // keys it sets in `store` start with "gloo/"; the store is not kept.
  // REQUIRES: 0 <= rank < world_size.
  // Errors: kDeadlineExceeded (a rank did not come within formation_timeout),
  // kUnavailable (a rank went away), kInvalidArgument (the own address does
  // not resolve), and the store's.
  static absl::StatusOr<std::unique_ptr<GlooCommunicator>> Form(
      RendezvousStore& store, int rank, int world_size,
      const GlooOptions& options = {});

  // Leaves the group: to the peers as if this rank had ended.
  ~GlooCommunicator() override;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  absl::Status Agree(const CallVote& vote) override;
  absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> sends,
      absl::Span<const RecvSegment> recvs) override;
  absl::Status WaitExchange(ExchangeId id) override;
  void Abort() override;
  uint64_t num_exchanges() const override { return num_exchanges_.load(); }

 private:
  class Ballot;
  class Watch;

  GlooCommunicator(int rank, int world_size, absl::Duration timeout,
                   std::unique_ptr<GlooMesh> mesh);

  absl::Status AgreeWithin(const CallVote& vote, absl::Duration limit);
  // Records the first reason, wakes every waiter and closes the connections.
  // Returns the first reason.
  absl::Status Lose(const absl::Status& why);
  absl::Status lost() const;

  const int rank_;
  const int world_size_;
  const absl::Duration timeout_;
  std::atomic<uint64_t> num_exchanges_{0};

  // Null in a group of one.
  const std::unique_ptr<GlooMesh> mesh_;
  std::unique_ptr<Ballot> ballot_;
  mutable absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  // In flight, in the order of start.
  std::vector<std::unique_ptr<GlooTransfer>> transfers_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Watch> watch_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_GLOO_COMMUNICATOR_H_
