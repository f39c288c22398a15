#include "server/membership_service.h"

#include <utility>

#include "server/status_mapping.h"
#include "server/worker_registry.h"

namespace ithaca::server {
namespace {

using internal::v1::StoreGetRequest;
using internal::v1::StoreGetResponse;
using internal::v1::WorkerCommand;
using internal::v1::WorkerEvent;

// Waits for a key without a thread. A caller that gives up, by its deadline
// or its death, is a cancellation to gRPC.
class StoreGetReactor : public grpc::ServerUnaryReactor {
 public:
  explicit StoreGetReactor(RendezvousService* store) : store_(store) {}

  // gRPC keeps the reactor until the handler that calls this has returned,
  // whoever finishes it meanwhile.
  void Start(const StoreGetRequest& request, StoreGetResponse* response) {
    const RendezvousService::WaiterId waiter =
        store_->Get(request.rendezvous_id(), request.key(),
                    [this, response](absl::StatusOr<std::string> value) {
                      const grpc::Status status = ToGrpc(value.status());
                      if (value.ok()) response->set_value(*std::move(value));
                      Finish(status);
                    });
    bool cancelled = false;
    {
      absl::MutexLock lock(&mutex_);
      waiter_ = waiter;
      cancelled = cancelled_;
    }
    if (cancelled) GiveUp(waiter);
  }

 private:
  void OnCancel() override {
    RendezvousService::WaiterId waiter = 0;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      waiter = waiter_;
    }
    if (waiter != 0) GiveUp(waiter);
  }

  void OnDone() override { delete this; }

  void GiveUp(RendezvousService::WaiterId waiter) {
    if (store_->Cancel(waiter)) Finish(grpc::Status::CANCELLED);
  }

  RendezvousService* const store_;
  absl::Mutex mutex_;
  RendezvousService::WaiterId waiter_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

MembershipStream::MembershipStream(grpc::CallbackServerContext* context,
                                   MembershipListener* listener)
    : context_(context), listener_(listener) {}

void MembershipStream::Start(const absl::Status& admission) {
  self_ = shared_from_this();
  if (admission.ok()) {
    StartRead(&event_);
  } else {
    Close(admission);
  }
}

void MembershipStream::OnReadDone(bool ok) {
  if (!ok) {
    if (worker_.has_value()) listener_->OnStreamEnd(*worker_);
    Close(absl::OkStatus());
    return;
  }
  if (worker_.has_value()) {
    listener_->OnEvent(*worker_, event_);
  } else {
    if (!event_.has_join()) {
      Close(absl::InvalidArgumentError(
          "the first event of a membership is `join`"));
      return;
    }
    absl::StatusOr<WorkerId> worker =
        listener_->OnJoin(self_, event_.join(), PeerHost(context_->peer()));
    if (!worker.ok()) {
      Close(worker.status());
      return;
    }
    worker_ = *worker;
  }
  StartRead(&event_);
}

void MembershipStream::Send(WorkerCommand command) {
  absl::MutexLock lock(&mutex_);
  if (finished_ || closing_.has_value()) return;
  unsent_.push_back(std::move(command));
  if (writing_) return;
  writing_ = true;
  StartWrite(&unsent_.front());
}

void MembershipStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  unsent_.pop_front();
  if (!ok) unsent_.clear();  // the read that fails too ends the membership
  writing_ = false;
  if (finished_) return;
  if (!unsent_.empty()) {
    writing_ = true;
    StartWrite(&unsent_.front());
  } else if (closing_.has_value()) {
    FinishLocked(*closing_);
  }
}

void MembershipStream::Close(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (finished_ || closing_.has_value()) return;
  closing_ = std::move(why);
  if (!writing_) FinishLocked(*closing_);
}

void MembershipStream::Cancel(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  if (finished_) return;
  context_->TryCancel();
  FinishLocked(why);
}

void MembershipStream::FinishLocked(const absl::Status& why) {
  finished_ = true;
  Finish(ToGrpc(why));
}

void MembershipStream::OnDone() {
  if (worker_.has_value()) listener_->OnStreamDone(*worker_);
  self_.reset();  // may delete this
}

MembershipService::MembershipService(MembershipListener* listener,
                                     RendezvousService* store,
                                     BearerToken token)
    : listener_(listener), store_(store), token_(std::move(token)) {}

grpc::ServerBidiReactor<WorkerEvent, WorkerCommand>*
MembershipService::Membership(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<MembershipStream>(context, listener_);
  stream->Start(token_.Check(context->client_metadata()));
  return stream.get();
}

grpc::ServerUnaryReactor* MembershipService::StoreSet(
    grpc::CallbackServerContext* context,
    const internal::v1::StoreSetRequest* request,
    internal::v1::StoreSetResponse* /*response*/) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = token_.Check(context->client_metadata());
  if (status.ok()) {
    status =
        store_->Set(request->rendezvous_id(), request->key(), request->value());
  }
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* MembershipService::StoreGet(
    grpc::CallbackServerContext* context,
    const internal::v1::StoreGetRequest* request,
    internal::v1::StoreGetResponse* response) {
  if (auto status = token_.Check(context->client_metadata()); !status.ok()) {
    grpc::ServerUnaryReactor* refusal = context->DefaultReactor();
    refusal->Finish(ToGrpc(status));
    return refusal;
  }
  auto* reactor = new StoreGetReactor(store_);
  reactor->Start(*request, response);
  return reactor;
}

}  // namespace ithaca::server
