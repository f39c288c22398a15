#ifndef ITHACA_TESTS_BENCH_RECORDING_COMMUNICATOR_H_
#define ITHACA_TESTS_BENCH_RECORDING_COMMUNICATOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/communicator.h"

namespace ithaca::bench {

// What an exchange moved: peers and sizes; the addresses are of a call that is
// over.
struct RecordedExchange {
  std::vector<SendSegment> sends;
  std::vector<RecvSegment> recvs;
};

// Another communicator, and what its exchanges since the last vote were.
class RecordingCommunicator : public Communicator {
 public:
  explicit RecordingCommunicator(Communicator* inner) : inner_(inner) {}

  const std::vector<RecordedExchange>& exchanges() const { return exchanges_; }

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  absl::Status Agree(const CallVote& vote) override {
    exchanges_.clear();
    return inner_->Agree(vote);
  }
  absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> sends,
      absl::Span<const RecvSegment> recvs) override {
    exchanges_.push_back(
        {{sends.begin(), sends.end()}, {recvs.begin(), recvs.end()}});
    return inner_->StartExchange(sends, recvs);
  }
  absl::Status WaitExchange(ExchangeId id) override {
    return inner_->WaitExchange(id);
  }
  void Abort() override { inner_->Abort(); }
  uint64_t num_exchanges() const override { return inner_->num_exchanges(); }

 private:
  Communicator* const inner_;
  std::vector<RecordedExchange> exchanges_;
};

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_RECORDING_COMMUNICATOR_H_
