#ifndef ITHACA_WORKER_SILENT_COMMUNICATOR_H_
#define ITHACA_WORKER_SILENT_COMMUNICATOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/communicator.h"

namespace ithaca {

// One rank of a group that is not there: its votes agree and its exchanges move
// nothing. A call over it makes the rank do all of its own work, on whatever
// the buffers hold, and so prepares what the same call will need: memory,
// kernels, plans.
class SilentCommunicator : public Communicator {
 public:
  // REQUIRES: 0 <= rank < world_size.
  SilentCommunicator(int rank, int world_size)
      : rank_(rank), world_size_(world_size) {}

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  // The rank's own word is the group's.
  absl::Status Agree(const CallVote& vote) override {
    return vote.code == absl::StatusCode::kOk
               ? absl::OkStatus()
               : absl::Status(vote.code, "this rank cannot run the call");
  }
  absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> /*sends*/,
      absl::Span<const RecvSegment> /*recvs*/) override {
    return num_exchanges_++;
  }
  absl::Status WaitExchange(ExchangeId /*id*/) override {
    return absl::OkStatus();
  }
  void Abort() override {}
  uint64_t num_exchanges() const override { return num_exchanges_; }

 private:
  const int rank_;
  const int world_size_;
  uint64_t num_exchanges_ = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_SILENT_COMMUNICATOR_H_
