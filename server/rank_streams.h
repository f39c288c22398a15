#ifndef ITHACA_SERVER_RANK_STREAMS_H_
#define ITHACA_SERVER_RANK_STREAMS_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/fan_out.h"
#include "server/stream_message.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

// One call's RankService.StreamAttention on every rank of its group: inputs are
// passed on while they come, `run` is given once, and then each rank's output
// is read as it is asked for. So a call has two lives: to the scheduler it is a
// run that begins with Claim and ends with on_done; to its client it is bytes
// before and after that.
//
// Thread-safe. Callbacks come from gRPC's threads, with no lock held.
class RankStreams : public std::enable_shared_from_this<RankStreams> {
 public:
  // What the client's side hears. Abandon ends it, but for what was on its way.
  class Observer {
   public:
    virtual ~Observer() = default;
    // unsent_bytes() has become less.
    virtual void OnSent() = 0;
    // What one ReadOutput asked for, as the rank placed it.
    virtual void OnOutput(int rank, uint64_t offset,
                          const TensorBytes& bytes) = 0;
    // The rank's stream is over, and was neither claimed nor read to its end.
    virtual void OnBroken(int rank, const grpc::Status& status) = 0;
  };

  // output_bytes: what each rank will send.
  RankStreams(std::shared_ptr<RankChannels> channels,
              std::vector<int64_t> output_bytes,
              std::weak_ptr<Observer> observer);
  ~RankStreams();

  // Opens the streams. opens: by rank. Call it once.
  void Start(const std::vector<internal::v1::AttentionCall>& opens);

  // Queues input bytes for a rank, by reference. REQUIRES: before Claim.
  void Send(int rank, int64_t offset, const TensorBytes& bytes);
  // Input bytes that no connection has taken yet, of all ranks together.
  int64_t unsent_bytes() const;

  // The call's turn has come. true: it must be Run, and Abandon does not stop
  // the ranks any more. false: it was abandoned, or a rank is gone.
  bool Claim();
  // Gives every rank the number. on_failure: a rank ended with what does not
  // leave its group intact, for each such rank, at once. on_done: each rank has
  // sent its execution or ended; the last callback.
  struct RunCallbacks {
    std::function<void(int rank, const grpc::Status& status)> on_failure;
    std::function<void()> on_done;
  };
  void Run(uint64_t call_number, RunCallbacks callbacks);

  // By rank; REQUIRES: on_done was called. execution: where the status is OK.
  const grpc::Status& status(int rank) const;
  const internal::v1::RankExecution& execution(int rank) const;

  // Reads the rank's next chunk. REQUIRES: on_done was called, not all of the
  // rank's output has been read, and no other read of it is under way.
  void ReadOutput(int rank);

  // The client does not want the call any more: what was staged is dropped; but
  // ranks that were given the number finish first, and so the group stays.
  void Abandon();
  // Gives up at once. The group is lost.
  void Cancel();

 private:
  class Leg;

  void OnRead(Leg* leg, bool ok);
  void OnWritten(Leg* leg, bool ok);
  void OnEnded(Leg* leg, const grpc::Status& status);
  void CountAnswer();

  bool Accept(Leg* leg, RankAnswerPart* part)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Queue(Leg* leg, const grpc::ByteBuffer& message, int64_t bytes,
             bool last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteNext(Leg* leg) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropQueue(Leg* leg) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(Leg* leg) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(Leg* leg) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Break(Leg* leg, const std::string& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelLegs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<RankChannels> channels_;
  const std::weak_ptr<Observer> observer_;
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Leg>> legs_;  // what is in them by the lock
  int64_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool abandoned_ ABSL_GUARDED_BY(mutex_) = false;
  bool claimed_ ABSL_GUARDED_BY(mutex_) = false;
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  int missing_ ABSL_GUARDED_BY(mutex_);  // ranks that have not answered
  RunCallbacks callbacks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_RANK_STREAMS_H_
