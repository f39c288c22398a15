#include "worker/call_sequencer.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca {

absl::Status CallSequencer::Submit(uint64_t number, Call call) {
  absl::MutexLock lock(&mutex_);
  if (!ended_.ok()) return ended_;
  if (number < next_) {
    return absl::InvalidArgumentError(
        absl::StrCat("call_number: expected ", next_, " or more, got ", number,
                     ", which has had its turn"));
  }
  if (number - next_ >= window_) {
    return absl::OutOfRangeError(absl::StrCat(
        "call_number: expected less than ", next_ + window_, ", got ", number));
  }
  const auto [place, is_new] = waiting_.try_emplace(number);
  if (!is_new) {
    return absl::AlreadyExistsError(
        absl::StrCat("call_number: ", number, " is waiting already"));
  }
  place->second = std::move(call);
  return absl::OkStatus();
}

void CallSequencer::Run() {
  while (true) {
    Call call;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CallSequencer::HasWorkOrEnded));
      if (!ended_.ok()) return;
      auto it = waiting_.find(next_);
      call = std::move(it->second);
      waiting_.erase(it);
      ++next_;
      running_ = true;
    }
    call(absl::OkStatus());
    call = nullptr;  // what it holds is released before it counts as done
    absl::MutexLock lock(&mutex_);
    running_ = false;
  }
}

void CallSequencer::Abort(const absl::Status& why) {
  std::map<uint64_t, Call> waiting;
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return;
    ended_ = why;
    waiting.swap(waiting_);
  }
  for (auto& [number, call] : waiting) call(why);
}

bool CallSequencer::AwaitIdle(absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(
      absl::Condition(this, &CallSequencer::IdleOrEnded), limit);
}

}  // namespace ithaca
