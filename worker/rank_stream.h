#ifndef ITHACA_WORKER_RANK_STREAM_H_
#define ITHACA_WORKER_RANK_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "worker/host_buffer_pool.h"
#include "worker/rank_call.h"
#include "worker/rank_stream_message.h"
#include "worker/rank_tensors.h"
#include "worker/serving_session.h"
#include "worker/staged_inputs.h"

namespace ithaca {

// One StreamAttention: stages the inputs as they come, submits the call at
// `run`, and sends the output as fast as the coordinator takes it. The session
// runs other calls meanwhile.
//
// Before `run` it has no call number: whatever ends it then costs the group
// nothing. After it, nothing is read and a cancellation is not looked at: the
// rank finishes what it entered.
//
// It deletes itself when gRPC is done with it.
class RankStream
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  struct Host {
    ServingSession* sessions = nullptr;
    HostBufferPool* staging = nullptr;
    // Each call that went well, on the thread that ran it.
    std::function<void(const RankReport&)> on_report;
  };

  // `host` outlives it. An admission that is not OK is its end.
  RankStream(const Host* host, const absl::Status& admission);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override { delete this; }

 private:
  // Each OK: read on.
  absl::Status Take(StreamPart part);
  absl::Status Open(const internal::v1::AttentionCall& message);
  absl::Status Stage(const StagedChunk& chunk);
  void Run(uint64_t call_number);

  void Answer(absl::StatusOr<RankResult> result);
  // The next chunk of the output; false if there is none.
  bool WriteChunk();
  // The stream's last act: with no more than the status.
  void End(const absl::Status& status);

  const Host* const host_;
  grpc::ByteBuffer message_;

  // From `open` to `run`.
  std::optional<RankCall> call_;
  uint64_t generation_ = 0;
  std::optional<StagedInputs> staged_;

  std::vector<ByteRange> unsent_;  // the first at the back
  uint64_t sent_ = 0;
  std::shared_ptr<const HostBuffer> output_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_STREAM_H_
