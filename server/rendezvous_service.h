#ifndef ITHACA_SERVER_RENDEZVOUS_SERVICE_H_
#define ITHACA_SERVER_RENDEZVOUS_SERVICE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

// Where the ranks of a group under formation leave addresses and ids for each
// other: one name space per attempt, gone with it. Pure memory; the RPCs are
// StoreSet and StoreGet of ithaca.internal.v1.WorkerRegistry.

namespace ithaca::server {

class RendezvousService {
 public:
  // Called once, without a lock held.
  using GetCallback = std::function<void(absl::StatusOr<std::string>)>;
  using WaiterId = uint64_t;

  // A worker that runs wild must not eat the coordinator's memory.
  static constexpr size_t kMaxAttemptBytes = size_t{16} << 20;

  // REQUIRES: an id never opened before.
  void Open(std::string_view rendezvous_id);

  // Answers everyone who waits in it with kFailedPrecondition and forgets it.
  void Close(std::string_view rendezvous_id);
  void CloseAll();

  // A key set again takes the new value.
  // Errors: kFailedPrecondition (no such attempt, or it is over),
  // kResourceExhausted (kMaxAttemptBytes).
  absl::Status Set(std::string_view rendezvous_id, std::string_view key,
                   std::string_view value);

  // Calls `done` with the value, at once or when it is set, or with
  // kFailedPrecondition when the attempt is over. The id is for Cancel.
  WaiterId Get(std::string_view rendezvous_id, std::string_view key,
               GetCallback done);

  // Forgets a waiter. True: its callback was not called and will not be.
  bool Cancel(WaiterId waiter);

 private:
  struct Waiter {
    std::string key;
    GetCallback done;
  };
  struct Attempt {
    std::map<std::string, std::string, std::less<>> values;
    std::map<WaiterId, Waiter> waiters;
    size_t bytes = 0;
  };

  absl::Mutex mutex_;
  std::map<std::string, Attempt, std::less<>> attempts_ ABSL_GUARDED_BY(mutex_);
  WaiterId next_waiter_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_RENDEZVOUS_SERVICE_H_
