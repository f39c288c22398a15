#ifndef ITHACA_SERVER_STREAMED_CALL_H_
#define ITHACA_SERVER_STREAMED_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/client_call.h"
#include "server/output_merge.h"
#include "server/pending_call.h"
#include "server/rank_streams.h"
#include "server/stream_input.h"
#include "server/stream_message.h"
#include "server/stream_scatter.h"
#include "server/timer_queue.h"

namespace ithaca::server {

// One StreamAttention call, from its first part to its status:
//
//   request     the `request` part is awaited
//   uploading   chunks are passed on to the ranks of the call's group; while
//               more than kMaxUnsentBytes wait for the ranks none is read
//   submitted   every byte is with the ranks: it queues and runs, as any call
//   answering   the response is sent, then the output, of which no more than
//               kMaxReadAhead is read before the client takes it
//   ended       the status is on its way
//
// So neither a slow sender nor a slow reader holds up the group, and what the
// coordinator holds of a call does not grow with it.
//
// Thread-safe. It lives while gRPC has its reactor.
class StreamedCall final : public RankStreams::Observer,
                           public std::enable_shared_from_this<StreamedCall> {
 public:
  static constexpr int64_t kMaxUnsentBytes = int64_t{4} << 20;
  static constexpr int64_t kMaxReadAhead = int64_t{4} << 20;
  static constexpr int64_t kChunkBytes = int64_t{1} << 20;

  using ServerReactor =
      grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

  struct Host {
    CallServices* services = nullptr;
    TimerQueue* timers = nullptr;
    // What a client may let us wait for a chunk, or with the output.
    absl::Duration idle_timeout;
    // And a rank, outside of the run, whose time the scheduler keeps.
    absl::Duration rank_timeout;
    // gRPC has let go of the call.
    std::function<void()> on_closed;
  };

  // The reactor of a call that has just come; it deletes itself. Everything
  // outlives it.
  static ServerReactor* Accept(const Host* host,
                               grpc::CallbackServerContext* context);

  StreamedCall(const Host* host, grpc::CallbackServerContext* context);

  void OnSent() override;
  void OnOutput(int rank, uint64_t offset, const TensorBytes& bytes) override;
  void OnBroken(int rank, const grpc::Status& status) override;

 private:
  enum class Phase : uint8_t {
    kRequest,
    kUploading,
    kSubmitted,
    kAnswering,
    kEnded
  };
  class Reactor;

  void Begin(ServerReactor* reactor);
  void OnClientRead(bool ok);
  void OnClientWritten(bool ok);
  void OnClientCancel();
  void OnClientDone();
  void OnOutcome(absl::StatusOr<CallOutcome> outcome);
  void OnTimer();
  // Ends the call from outside of its course.
  void Refuse(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status TakePart() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeRequest(const TensorBytes& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeChunk(const ClientPart& part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the call is to be submitted now, once.
  bool TakeTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Answer(CallOutcome outcome) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PassOutput() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Write(grpc::ByteBuffer message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // When what is waited for is late, and what it means.
  absl::Duration Patience() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status Late() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Progress() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ArmTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Host* const host_;
  grpc::CallbackServerContext* const context_;

  absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kRequest;
  ServerReactor* reactor_ ABSL_GUARDED_BY(mutex_) = nullptr;  // none: closed
  ClientCall client_call_;
  std::shared_ptr<PendingCall> call_;  // from `uploading`
  std::shared_ptr<RankStreams> streams_ ABSL_GUARDED_BY(mutex_);
  std::optional<StreamScatter> scatter_ ABSL_GUARDED_BY(mutex_);
  std::optional<StreamInput> input_ ABSL_GUARDED_BY(mutex_);
  std::optional<OutputMerge> merge_ ABSL_GUARDED_BY(mutex_);
  ByteBudget::Reservation reservation_ ABSL_GUARDED_BY(mutex_);
  // What the call ends with whatever its ranks say.
  absl::Status verdict_ ABSL_GUARDED_BY(mutex_);

  grpc::ByteBuffer incoming_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ByteBuffer outgoing_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t writing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_rank_ ABSL_GUARDED_BY(mutex_) = false;

  absl::Time since_ ABSL_GUARDED_BY(mutex_);  // of the last progress
  absl::Time timer_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_STREAMED_CALL_H_
