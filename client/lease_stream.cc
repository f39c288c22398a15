#include "client/lease_stream.h"

#include <utility>

#include "client/call_context.h"
#include "client/rpc_status.h"

namespace ithaca::client {

LeaseStream::LeaseStream(std::shared_ptr<v1::MemoryService::Stub> stub,
                         Opened opened)
    : stub_(std::move(stub)), opened_(std::move(opened)) {}

std::shared_ptr<LeaseStream> LeaseStream::Create(
    std::shared_ptr<v1::MemoryService::Stub> stub, Opened opened) {
  return std::shared_ptr<LeaseStream>(
      new LeaseStream(std::move(stub), std::move(opened)));
}

void LeaseStream::Start(const std::string& token, absl::Time deadline) {
  const std::shared_ptr<LeaseStream> self = shared_from_this();
  self_ = self;
  // The stream itself has no deadline: it lasts.
  PrepareContext(token, absl::InfiniteFuture(), &context_);
  deadline_.Set(absl::ToChronoTime(deadline),
                [weak = weak_from_this()](bool passed) {
                  const auto late = passed ? weak.lock() : nullptr;
                  if (late == nullptr) return;
                  const absl::MutexLock lock(&late->mutex_);
                  if (late->opened_ != nullptr) late->context_.TryCancel();
                });
  const v1::KeepLeaseRequest request;
  stub_->async()->KeepLease(&context_, &request, this);
  StartRead(&message_);
  StartCall();
}

void LeaseStream::Close() {
  {
    const absl::MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
  }
  context_.TryCancel();
}

bool LeaseStream::ended() const {
  const absl::MutexLock lock(&mutex_);
  return ended_;
}

void LeaseStream::OnReadDone(bool ok) {
  if (!ok) return;  // OnDone comes
  Opened opened;
  {
    const absl::MutexLock lock(&mutex_);
    opened = std::exchange(opened_, nullptr);
  }
  if (opened != nullptr) {
    deadline_.Cancel();
    opened(message_.lease());
  }
  StartRead(&message_);  // waits for the end
}

void LeaseStream::OnDone(const grpc::Status& status) {
  const auto self = std::exchange(self_, nullptr);
  Opened opened;
  {
    const absl::MutexLock lock(&mutex_);
    ended_ = true;
    opened = std::exchange(opened_, nullptr);
  }
  deadline_.Cancel();
  if (opened == nullptr) return;
  opened(status.ok() ? absl::UnavailableError("the lease ended at once")
                     : ToAbslStatus(status, context_));
}

}  // namespace ithaca::client
