#ifndef ITHACA_WORKER_RENDEZVOUS_STORE_H_
#define ITHACA_WORKER_RENDEZVOUS_STORE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace ithaca {

// Where the ranks of a group under formation leave addresses and ids for each
// other. One namespace per formation attempt, so that nothing of an earlier
// generation is ever seen. Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  // Errors: kUnavailable (the store is gone), kFailedPrecondition (the
  // formation attempt is over).
  virtual absl::Status Set(std::string_view key, std::string_view value) = 0;

  // Waits until the key is set. Errors: as Set, and kDeadlineExceeded.
  virtual absl::StatusOr<std::string> Get(std::string_view key,
                                          absl::Duration timeout) = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RENDEZVOUS_STORE_H_
