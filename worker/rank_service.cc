#include "worker/rank_service.h"

#include <utility>

#include "absl/status/status.h"
#include "worker/call_conversion.h"
#include "worker/rank_message.h"
#include "worker/rank_status.h"

namespace ithaca {

RankService::RankService(HostBufferPool* staging,
                         std::function<void(const RankReport&)> on_report)
    : host_{&sessions_, staging, std::move(on_report)} {}

grpc::ServerUnaryReactor* RankService::RunAttention(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  auto message = std::make_shared<RankRequest>();
  absl::Status status = ParseRankRequest(*request, message.get());
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
RankService::StreamAttention(grpc::CallbackServerContext* /*context*/) {
  return new RankStream(&host_);
}

}  // namespace ithaca
