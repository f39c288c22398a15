#include "worker/rank_service.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/call_conversion.h"
#include "worker/grpc_status.h"
#include "worker/rank_message.h"

namespace ithaca {

RankService::RankService(std::function<void(const RankReport&)> on_report)
    : on_report_(std::move(on_report)) {}

void RankService::SetSession(std::shared_ptr<GroupSession> session) {
  // The old session, if nobody else holds it, ends with the parameter: after
  // the lock is given back.
  absl::MutexLock lock(&mutex_);
  session_.swap(session);
}

bool RankService::AwaitIdle(absl::Duration limit) {
  const std::shared_ptr<GroupSession> current = session();
  return current == nullptr || current->AwaitIdle(limit);
}

std::shared_ptr<GroupSession> RankService::session() {
  absl::MutexLock lock(&mutex_);
  return session_;
}

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
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  const std::shared_ptr<GroupSession> session = this->session();
  const uint64_t generation = message->call.generation();
  if (session == nullptr || session->membership().generation != generation) {
    const std::string present =
        session == nullptr ? "none"
                           : absl::StrCat(session->membership().generation);
    reactor->Finish(ToGrpc(absl::FailedPreconditionError(
        absl::StrCat("call.generation: this rank's group is of generation ",
                     present, ", the call of ", generation))));
    return reactor;
  }

  absl::StatusOr<RankCall> call = ToRankCall(message->call);
  if (!call.ok()) {
    reactor->Finish(ToGrpc(call.status()));
    return reactor;
  }
  call->tensors = std::move(message->tensors);
  call->tensors_owner = std::move(message);
  status = session->Submit(
      *std::move(call),
      [this, reactor, response](absl::StatusOr<RankResult> result) {
        if (result.ok()) {
          on_report_(result->report);
          *response =
              FrameRankResponse(ToProto(*result), std::move(result->output),
                                result->output_bytes);
        }
        reactor->Finish(ToGrpc(result.status()));
      });
  if (!status.ok()) reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace ithaca
