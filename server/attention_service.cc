#include "server/attention_service.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "server/attention_message.h"
#include "server/client_call.h"
#include "server/pending_call.h"
#include "server/protocol_enums.h"
#include "server/request_validation.h"
#include "server/status_mapping.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

namespace {

namespace v1 = ithaca::v1;

}  // namespace

// One Attention call, from its message to its status. It ends in End, once:
// from Take if it is refused, else by its PendingCall.
class AttentionService::AttentionReactor : public grpc::ServerUnaryReactor {
 public:
  AttentionReactor(AttentionService* service,
                   grpc::CallbackServerContext* context,
                   grpc::ByteBuffer* response)
      : service_(service),
        context_(context),
        response_(response),
        client_call_(&service->services_, TensorTransport::kInMessage,
                     context) {
    service_->CountOpenCall(1);
  }

  void Take(const grpc::ByteBuffer& message) {
    if (auto status = Submit(message); !status.ok()) End(std::move(status));
  }

  void OnCancel() override {
    // A call that was refused has ended and cannot be cancelled.
    if (call_ == nullptr) return;
    service_->services_.scheduler->Cancel(call_, client_call_.Cancelled());
  }

  void OnDone() override {
    AttentionService* const service = service_;
    delete this;
    service->CountOpenCall(-1);
  }

 private:
  // OK: the call is the scheduler's, and may have ended already.
  absl::Status Submit(const grpc::ByteBuffer& message) {
    if (auto status = client_call_.CheckToken(); !status.ok()) return status;
    if (!message.Valid()) {
      // Where the client went before its message came, there is none either.
      absl::Status cancelled = client_call_.Cancelled();
      if (context_->IsCancelled() || absl::IsDeadlineExceeded(cancelled)) {
        return cancelled;
      }
      return absl::InvalidArgumentError("the call came without a message");
    }
    const int64_t limit = service_->services_.max_message_bytes;
    if (const auto length = static_cast<int64_t>(message.Length());
        length > limit) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the request message: expected at most ", limit, " bytes, got ",
          length, "; StreamAttention takes larger tensors"));
    }
    TensorBytes bytes;
    if (!FromByteBuffer(message, &bytes)) {
      return absl::InvalidArgumentError(
          "the request message cannot be decompressed");
    }
    auto call =
        client_call_.Admit(bytes, [this](absl::StatusOr<CallOutcome> outcome) {
          End(std::move(outcome));
        });
    if (!call.ok()) return call.status();
    // Before it is submitted: from then on it may end at any moment.
    call_ = *call;
    service_->services_.scheduler->Submit(*call);
    return absl::OkStatus();
  }

  void End(absl::StatusOr<CallOutcome> outcome) {
    if (outcome.ok()) {
      client_call_.RecordAnswer(&*outcome);
      grpc::ByteBuffer response = Response(*outcome);
      response_->Swap(&response);
    }
    Finish(client_call_.End(outcome.status()));
  }

  grpc::ByteBuffer Response(const CallOutcome& outcome) {
    if (const auto& slice = client_call_.output_slice()) {
      return MakeAttentionResponse(
          client_call_.request_id(), ToProto(client_call_.dtype()),
          client_call_.output_shape(), *slice, outcome.report);
    }
    client_call_.RecordOutput(outcome.output.size());
    return MakeAttentionResponse(
        client_call_.request_id(), ToProto(client_call_.dtype()),
        client_call_.output_shape(), outcome.output, outcome.report);
  }

  AttentionService* const service_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  ClientCall client_call_;
  std::shared_ptr<PendingCall> call_;  // nullptr: refused before it was one
};

AttentionService::AttentionService(const GroupManager* manager,
                                   GroupScheduler* scheduler,
                                   ByteBudget* budget, Metrics* metrics,
                                   Options options)
    : manager_(manager),
      version_(std::move(options.version)),
      device_(std::move(options.device)),
      shared_memory_(options.shared_memory),
      cuda_memory_(options.cuda_memory),
      services_{scheduler,
                budget,
                metrics,
                &in_flight_,
                std::move(options.token),
                options.max_message_bytes,
                options.max_request_bytes,
                options.regions},
      streams_{&services_, &timers_, options.stream_idle_timeout,
               options.rank_timeout, [this] { CountOpenCall(-1); }} {}

grpc::ServerUnaryReactor* AttentionService::Attention(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto* reactor = new AttentionReactor(this, context, response);
  reactor->Take(*request);
  return reactor;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
AttentionService::StreamAttention(grpc::CallbackServerContext* context) {
  CountOpenCall(1);
  return StreamedCall::Accept(&streams_, context);
}

grpc::ServerUnaryReactor* AttentionService::GetServerInfo(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  CallRecord record(services_.metrics, Method::kGetServerInfo);
  const grpc::Status status =
      ToGrpc(DescribeServer(*context, *request, response));
  record.End(status.error_code());
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

absl::Status AttentionService::DescribeServer(
    const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
    grpc::ByteBuffer* response) const {
  if (auto status = services_.token.Check(context.client_metadata());
      !status.ok()) {
    return status;
  }
  TensorBytes bytes;
  if (!request.Valid() || !FromByteBuffer(request, &bytes) ||
      !v1::GetServerInfoRequest().ParseFromString(bytes.Flatten())) {
    return absl::InvalidArgumentError(
        "the request is not a valid ithaca.v1.GetServerInfoRequest message");
  }
  v1::GetServerInfoResponse info;
  info.set_version(version_);
  info.set_device(device_);
  for (const Group& group : manager_->Groups()) {
    v1::GroupInfo* described = info.add_groups();
    described->set_name(group.name);
    described->set_generation(group.generation);
    described->set_world_size(static_cast<uint32_t>(group.members.size()));
    // Formed, proven, and not answering its probe now.
    const bool silent =
        group.state == GroupState::kReady &&
        !services_.scheduler->Ready(group.name, group.generation);
    described->set_state(
        std::string(Name(silent ? GroupState::kFailed : group.state)));
    for (const GroupMember& member : group.members) {
      described->add_workers(member.worker);
    }
  }
  info.set_max_message_bytes(
      static_cast<uint64_t>(services_.max_message_bytes));
  info.set_max_request_bytes(
      static_cast<uint64_t>(services_.max_request_bytes));
  info.set_shared_memory(shared_memory_);
  info.set_cuda_memory(cuda_memory_);
  for (const auto precision :
       {CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
        CommunicationPrecision::kInt8}) {
    info.add_communication_precisions(ToProto(precision));
  }
  if (const auto kernels = services_.scheduler->Kernels()) {
    for (const AttentionKernelKind kernel : *kernels) {
      info.add_kernels(ToProto(kernel));
    }
  }
  grpc::ByteBuffer message =
      ToByteBuffer({grpc::Slice(info.SerializeAsString())});
  response->Swap(&message);
  return absl::OkStatus();
}

void AttentionService::CountOpenCall(int change) {
  const absl::MutexLock lock(&mutex_);
  open_calls_ += change;
}

bool AttentionService::AwaitIdle(absl::Time deadline) {
  const absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return open_calls_ == 0;
  };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

}  // namespace ithaca::server
