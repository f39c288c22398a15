#ifndef ITHACA_WORKER_IN_PROCESS_COMMUNICATOR_H_
#define ITHACA_WORKER_IN_PROCESS_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/communicator.h"

namespace ithaca {

// A group whose ranks are threads of one process and exchange by memory copy:
// the group of one, and every group of a unit test. Faults can be put into it.
//
// A rank that waits does the copying, so exchanges do not overlap with work.
//
// Thread-safety: any thread may call any method; each rank's communicator is
// as in Communicator. Communicators may outlive the group object.
class InProcessGroup {
 public:
  // Copies from one rank's memory to another's, and returns when it has.
  using CopyMemory =
      std::function<absl::Status(void* dst, const void* src, int64_t bytes)>;

  // No wait for another rank lasts longer than `timeout`. Without `copy` the
  // ranks' memory is the host's.
  explicit InProcessGroup(int world_size,
                          absl::Duration timeout = absl::Seconds(60),
                          CopyMemory copy = nullptr);

  int world_size() const;

  // The end of `rank`, in [0, world_size). Ask once for each rank.
  std::unique_ptr<Communicator> MakeCommunicator(int rank);

  // Faults.

  // As if the rank's process had ended: pending and later calls of every rank
  // give kUnavailable.
  void KillRank(int rank);
  // Each later exchange of the rank starts this much late.
  void DelayExchanges(int rank, absl::Duration delay);
  // The rank's next vote carries `code` instead of its own.
  void FailNextVote(int rank, absl::StatusCode code);

 private:
  class State;
  class RankCommunicator;

  std::shared_ptr<State> state_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_IN_PROCESS_COMMUNICATOR_H_
