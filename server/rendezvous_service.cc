#include "server/rendezvous_service.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca::server {
namespace {

absl::Status AttemptIsOver(std::string_view rendezvous_id) {
  return absl::FailedPreconditionError(
      absl::StrCat("the formation attempt '", std::string(rendezvous_id),
                   "' is over or was never begun"));
}

}  // namespace

void RendezvousService::Open(std::string_view rendezvous_id) {
  absl::MutexLock lock(&mutex_);
  attempts_.try_emplace(std::string(rendezvous_id));
}

void RendezvousService::Close(std::string_view rendezvous_id) {
  std::map<WaiterId, Waiter> waiters;
  {
    absl::MutexLock lock(&mutex_);
    auto it = attempts_.find(rendezvous_id);
    if (it == attempts_.end()) return;
    waiters = std::move(it->second.waiters);
    attempts_.erase(it);
  }
  for (auto& [id, waiter] : waiters) waiter.done(AttemptIsOver(rendezvous_id));
}

void RendezvousService::CloseAll() {
  std::vector<std::string> ids;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, attempt] : attempts_) ids.push_back(id);
  }
  for (const std::string& id : ids) Close(id);
}

absl::Status RendezvousService::Set(std::string_view rendezvous_id,
                                    std::string_view key,
                                    std::string_view value) {
  std::vector<GetCallback> answered;
  {
    absl::MutexLock lock(&mutex_);
    auto it = attempts_.find(rendezvous_id);
    if (it == attempts_.end()) return AttemptIsOver(rendezvous_id);
    Attempt& attempt = it->second;
    size_t bytes = attempt.bytes + key.size() + value.size();
    auto old = attempt.values.find(key);
    if (old != attempt.values.end()) bytes -= key.size() + old->second.size();
    if (bytes > kMaxAttemptBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a formation attempt holds at most ", kMaxAttemptBytes,
                       " bytes of keys and values; this would make ", bytes));
    }
    attempt.bytes = bytes;
    attempt.values.insert_or_assign(std::string(key), std::string(value));
    for (auto w = attempt.waiters.begin(); w != attempt.waiters.end();) {
      if (w->second.key == key) {
        answered.push_back(std::move(w->second.done));
        w = attempt.waiters.erase(w);
      } else {
        ++w;
      }
    }
  }
  for (GetCallback& done : answered) done(std::string(value));
  return absl::OkStatus();
}

RendezvousService::WaiterId RendezvousService::Get(
    std::string_view rendezvous_id, std::string_view key, GetCallback done) {
  absl::StatusOr<std::string> answer = AttemptIsOver(rendezvous_id);
  WaiterId id = 0;
  {
    absl::MutexLock lock(&mutex_);
    id = next_waiter_++;
    auto it = attempts_.find(rendezvous_id);
    if (it != attempts_.end()) {
      auto value = it->second.values.find(key);
      if (value == it->second.values.end()) {
        it->second.waiters.emplace(id,
                                   Waiter{std::string(key), std::move(done)});
        return id;
      }
      answer = value->second;
    }
  }
  done(std::move(answer));
  return id;
}

bool RendezvousService::Cancel(WaiterId waiter) {
  // Destroyed after the lock is given back: it may own anything.
  GetCallback forgotten;
  absl::MutexLock lock(&mutex_);
  for (auto& [id, attempt] : attempts_) {
    auto it = attempt.waiters.find(waiter);
    if (it == attempt.waiters.end()) continue;
    forgotten = std::move(it->second.done);
    attempt.waiters.erase(it);
    return true;
  }
  return false;
}

}  // namespace ithaca::server
