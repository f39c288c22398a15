#include "worker/rank_service.h"

#include <utility>

#include "absl/status/status.h"
#include "worker/call_conversion.h"
#include "worker/grpc_status.h"
#include "worker/rank_message.h"
#include "worker/rank_status.h"

namespace ithaca {

RankService::RankService(HostBufferPool* staging, RegionTable* regions,
                         std::function<void(const RankReport&)> on_report,
                         BearerToken token)
    : regions_(regions),
      host_{&sessions_, staging, std::move(on_report)},
      token_(std::move(token)) {}

grpc::ServerUnaryReactor* RankService::RunAttention(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = token_.Check(context->client_metadata());
  if (!status.ok()) {
    reactor->Finish(ToRankStatus(status));
    return reactor;
  }
  auto message = std::make_shared<RankRequest>();
  status = ParseRankRequest(*request, message.get());
  // The slices are the message's now; gRPC would keep its references to them
  // until the call ends. It only looks const: nobody reads it after this.
  const_cast<grpc::ByteBuffer*>(request)->Clear();
  if (!status.ok()) {
    reactor->Finish(ToRankStatus(status));
    return reactor;
  }

  const auto session = sessions_.Find(message->call.generation());
  if (!session.ok()) {
    reactor->Finish(ToRankStatus(session.status()));
    return reactor;
  }

  absl::StatusOr<RankCall> call = ToRankCall(message->call);
  if (!call.ok()) {
    reactor->Finish(ToRankStatus(call.status()));
    return reactor;
  }
  call->tensors = std::move(message->tensors);
  call->tensors_owner = std::move(message);
  status = (*session)->Submit(
      *std::move(call),
      [this, reactor, response](absl::StatusOr<RankResult> result) {
        if (result.ok()) {
          host_.on_report(result->report);
          *response =
              FrameRankResponse(ToProto(*result), std::move(result->output),
                                result->output_bytes);
        }
        reactor->Finish(ToRankStatus(result.status()));
      });
  if (!status.ok()) reactor->Finish(ToRankStatus(status));
  return reactor;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
RankService::StreamAttention(grpc::CallbackServerContext* context) {
  return new RankStream(&host_, token_.Check(context->client_metadata()));
}

grpc::ServerUnaryReactor* RankService::AttachRegion(
    grpc::CallbackServerContext* context,
    const internal::v1::AttachRegionRequest* request,
    internal::v1::AttachRegionResponse* /*response*/) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (auto status = token_.Check(context->client_metadata()); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  absl::StatusOr<Region> region = ToRegion(request->region());
  if (!region.ok()) {
    reactor->Finish(ToGrpc(region.status()));
    return reactor;
  }
  regions_->Attach(*std::move(region), [reactor](const absl::Status& status) {
    reactor->Finish(ToGrpc(status));
  });
  return reactor;
}

grpc::ServerUnaryReactor* RankService::DetachRegion(
    grpc::CallbackServerContext* context,
    const internal::v1::DetachRegionRequest* request,
    internal::v1::DetachRegionResponse* /*response*/) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (auto status = token_.Check(context->client_metadata()); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  regions_->Detach(request->region_id(),
                   [reactor] { reactor->Finish(grpc::Status::OK); });
  return reactor;
}

}  // namespace ithaca
