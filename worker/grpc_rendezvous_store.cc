#include "worker/grpc_rendezvous_store.h"

#include <utility>

#include "absl/time/clock.h"
#include "worker/grpc_status.h"

namespace ithaca {

GrpcRendezvousStore::GrpcRendezvousStore(std::shared_ptr<grpc::Channel> channel,
                                         std::string rendezvous_id,
                                         std::string authorization)
    : rendezvous_id_(std::move(rendezvous_id)),
      authorization_(std::move(authorization)),
      stub_(internal::v1::WorkerRegistry::NewStub(std::move(channel))) {}

void GrpcRendezvousStore::Prepare(grpc::ClientContext* context,
                                  absl::Duration timeout) const {
  context->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  if (!authorization_.empty()) {
    context->AddMetadata("authorization", authorization_);
  }
}

absl::Status GrpcRendezvousStore::Set(std::string_view key,
                                      std::string_view value) {
  grpc::ClientContext context;
  Prepare(&context, absl::Seconds(10));
  internal::v1::StoreSetRequest request;
  request.set_rendezvous_id(rendezvous_id_);
  request.set_key(key.data(), key.size());
  request.set_value(value.data(), value.size());
  internal::v1::StoreSetResponse response;
  return FromGrpc(stub_->StoreSet(&context, request, &response));
}

absl::StatusOr<std::string> GrpcRendezvousStore::Get(std::string_view key,
                                                     absl::Duration timeout) {
  grpc::ClientContext context;
  Prepare(&context, timeout);
  internal::v1::StoreGetRequest request;
  request.set_rendezvous_id(rendezvous_id_);
  request.set_key(key.data(), key.size());
  internal::v1::StoreGetResponse response;
  const absl::Status status =
      FromGrpc(stub_->StoreGet(&context, request, &response));
  if (!status.ok()) return status;
  return std::move(*response.mutable_value());
}

}  // namespace ithaca
