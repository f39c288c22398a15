#ifndef ITHACA_WORKER_MEMBERSHIP_STREAM_H_
#define ITHACA_WORKER_MEMBERSHIP_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"

namespace ithaca {

// What a membership's thread waits for, from whichever thread it comes.
// Thread-safe.
class MembershipInbox {
 public:
  struct Letter {
    std::optional<internal::v1::WorkerCommand> command;  // from the stream
    std::optional<internal::v1::WorkerEvent> event;      // for the stream
    std::optional<absl::Status> ended;  // the stream is over; its last letter
  };

  void Put(Letter letter);
  // The next letter; nullopt at `until`, or at once after Close.
  std::optional<Letter> Take(absl::Time until);
  void DropAll();

  void Close();
  bool closed() const;
  // Sleeps; true if it was closed meanwhile.
  bool AwaitClosed(absl::Duration limit) const;

 private:
  bool HasNews() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !letters_.empty();
  }

  mutable absl::Mutex mutex_;
  std::deque<Letter> letters_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// One Membership stream over gRPC's callback API; what it hears goes to the
// inbox. Send and Cancel from one thread.
class MembershipStream
    : public grpc::ClientBidiReactor<internal::v1::WorkerEvent,
                                     internal::v1::WorkerCommand> {
 public:
  // Both outlive this. authorization: of the call; empty: none.
  MembershipStream(internal::v1::WorkerRegistry::Stub* stub,
                   const std::string& authorization, MembershipInbox* inbox);
  // REQUIRES: AwaitDone() has returned.
  ~MembershipStream() override = default;

  void Send(internal::v1::WorkerEvent event);
  void Cancel() { context_.TryCancel(); }
  void AwaitDone();

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  MembershipInbox* const inbox_;
  grpc::ClientContext context_;
  internal::v1::WorkerCommand command_;

  absl::Mutex mutex_;
  // The front is being written while it is not empty.
  std::deque<internal::v1::WorkerEvent> unsent_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is written any more
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_MEMBERSHIP_STREAM_H_
