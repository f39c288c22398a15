#include "worker/membership_stream.h"

#include <utility>

#include "absl/time/clock.h"
#include "worker/grpc_status.h"

namespace ithaca {

using internal::v1::WorkerEvent;

void MembershipInbox::Put(Letter letter) {
  absl::MutexLock lock(&mutex_);
  letters_.push_back(std::move(letter));
}

std::optional<MembershipInbox::Letter> MembershipInbox::Take(absl::Time until) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithDeadline(absl::Condition(this, &MembershipInbox::HasNews),
                           until);
  if (closed_ || letters_.empty()) return std::nullopt;
  Letter letter = std::move(letters_.front());
  letters_.pop_front();
  return letter;
}

void MembershipInbox::DropAll() {
  absl::MutexLock lock(&mutex_);
  letters_.clear();
}

void MembershipInbox::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
}

bool MembershipInbox::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

bool MembershipInbox::AwaitClosed(absl::Duration limit) const {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&closed_), limit);
}

MembershipStream::MembershipStream(internal::v1::WorkerRegistry::Stub* stub,
                                   const std::string& authorization,
                                   MembershipInbox* inbox)
    : inbox_(inbox) {
  if (!authorization.empty()) {
    context_.AddMetadata("authorization", authorization);
  }
  stub->async()->Membership(&context_, this);
  // Writes start outside of reactions; until the read fails, the stream must
  // not be done.
  AddHold();
  StartRead(&command_);
  StartCall();
}

void MembershipStream::OnReadDone(bool ok) {
  if (ok) {
    inbox_->Put({.command = command_, .event = {}, .ended = {}});
    StartRead(&command_);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }
  RemoveHold();
}

void MembershipStream::Send(WorkerEvent event) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  unsent_.push_back(std::move(event));
  if (unsent_.size() == 1) StartWrite(&unsent_.front());
}

void MembershipStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  unsent_.pop_front();
  if (!ok || ended_) {
    unsent_.clear();
    return;
  }
  if (!unsent_.empty()) StartWrite(&unsent_.front());
}

void MembershipStream::OnDone(const grpc::Status& status) {
  inbox_->Put({.command = {}, .event = {}, .ended = FromGrpc(status)});
  absl::MutexLock lock(&mutex_);
  done_ = true;
}

void MembershipStream::AwaitDone() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&done_));
}

}  // namespace ithaca
