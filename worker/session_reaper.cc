#include "worker/session_reaper.h"

#include <algorithm>
#include <utility>

namespace ithaca {

SessionReaper::~SessionReaper() {
  AwaitAll(absl::InfiniteDuration());
  absl::MutexLock lock(&mutex_);
  JoinDone();
}

void SessionReaper::Bury(std::shared_ptr<GroupSession> session,
                         absl::Status why, std::function<void()> on_ended) {
  absl::MutexLock lock(&mutex_);
  JoinDone();
  Burial& burial = burials_.emplace_back();
  burial.thread = std::thread([this, &burial, session = std::move(session),
                               why = std::move(why),
                               on_ended = std::move(on_ended)]() mutable {
    session->Abort(why);
    session.reset();
    on_ended();
    absl::MutexLock done(&mutex_);
    burial.done = true;
  });
}

bool SessionReaper::AwaitAll(absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(this, &SessionReaper::AllDone),
                                 limit);
}

bool SessionReaper::AllDone() const {
  return std::all_of(burials_.begin(), burials_.end(),
                     [](const Burial& burial) { return burial.done; });
}

void SessionReaper::JoinDone() {
  for (auto it = burials_.begin(); it != burials_.end();) {
    if (!it->done) {
      ++it;
      continue;
    }
    // Its last act was to set `done` under the lock that is held here.
    it->thread.join();
    it = burials_.erase(it);
  }
}

}  // namespace ithaca
