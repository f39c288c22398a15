#include "worker/serving_session.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ithaca {

void ServingSession::Set(std::shared_ptr<GroupSession> session) {
  // The old session, if nobody else holds it, ends with the parameter: after
  // the lock is given back.
  absl::MutexLock lock(&mutex_);
  session_.swap(session);
}

absl::StatusOr<std::shared_ptr<GroupSession>> ServingSession::Find(
    uint64_t generation) {
  std::shared_ptr<GroupSession> present = session();
  if (present != nullptr && present->membership().generation == generation) {
    return present;
  }
  const std::string ours = present == nullptr
                               ? "none"
                               : absl::StrCat(present->membership().generation);
  return absl::FailedPreconditionError(
      absl::StrCat("call.generation: this rank's group is of generation ", ours,
                   ", the call of ", generation));
}

bool ServingSession::AwaitIdle(absl::Duration limit) {
  const std::shared_ptr<GroupSession> present = session();
  return present == nullptr || present->AwaitIdle(limit);
}

std::shared_ptr<GroupSession> ServingSession::session() {
  absl::MutexLock lock(&mutex_);
  return session_;
}

}  // namespace ithaca
