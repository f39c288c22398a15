#ifndef ITHACA_SERVER_ADMISSION_QUEUE_H_
#define ITHACA_SERVER_ADMISSION_QUEUE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/pending_call.h"

namespace ithaca::server {

// Calls that wait for a group, first come, first served, bounded. It has no
// clock: a call whose client cancelled or whose deadline passed is taken out
// by Remove at that moment, whatever the groups do. Thread-safe.
class AdmissionQueue {
 public:
  // REQUIRES: max_queued_requests >= 1.
  explicit AdmissionQueue(int64_t max_queued_requests)
      : max_queued_requests_(max_queued_requests) {}

  // Errors: kResourceExhausted, with a retry hint; the call is not queued and
  // has not ended. A bound call is always taken: it was let in when it was
  // bound.
  absl::Status Push(std::shared_ptr<PendingCall> call);

  // For a call that had its turn already: to the front, whatever the bound.
  void PushFront(std::shared_ptr<PendingCall> call);

  // The first call that may run on this generation of a group: one that is
  // bound to no group, or to this; nullptr if there is none.
  std::shared_ptr<PendingCall> Pop(std::string_view group, uint64_t generation);

  // Whether the call was still queued, and now is not.
  bool Remove(const PendingCall& call);

  // Every call, in order; the queue is then empty.
  std::vector<std::shared_ptr<PendingCall>> TakeAll();

  int64_t size() const;
  int64_t max_queued_requests() const { return max_queued_requests_; }

  // kResourceExhausted, with a retry hint, as Push of a full queue.
  absl::Status Full() const;

 private:
  const int64_t max_queued_requests_;
  mutable absl::Mutex mutex_;
  std::deque<std::shared_ptr<PendingCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_ADMISSION_QUEUE_H_
