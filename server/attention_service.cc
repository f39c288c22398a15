#include "server/attention_service.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <spdlog/common.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "server/attention_message.h"
#include "server/logging.h"
#include "server/pending_call.h"
#include "server/protocol_enums.h"
#include "server/request_validation.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

namespace v1 = ithaca::v1;

// What a client that stopped waiting is recorded as. Client and server each
// time the deadline on their own, and the client's cancellation may arrive a
// little before the server's clock says so.
absl::Status StatusOfCancelled(absl::Time arrival, absl::Time deadline) {
  const absl::Time now = absl::Now();
  const absl::Duration tolerance =
      absl::Milliseconds(20) + 0.02 * (deadline - arrival);
  if (deadline != absl::InfiniteFuture() && now >= deadline - tolerance) {
    return absl::DeadlineExceededError("the call's deadline passed");
  }
  return absl::CancelledError("the client cancelled the call");
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max()
             ? absl::InfiniteFuture()
             : absl::FromChrono(deadline);
}

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
        arrival_(absl::Now()),
        record_(service->metrics_, Method::kAttention) {
    const absl::MutexLock lock(&service_->mutex_);
    ++service_->open_calls_;
  }

  void Take(const grpc::ByteBuffer& message) {
    if (auto status = Submit(message); !status.ok()) End(std::move(status));
  }

  void OnCancel() override {
    // A call that was refused has ended and cannot be cancelled.
    if (call_ == nullptr) return;
    service_->scheduler_->Cancel(
        call_, StatusOfCancelled(arrival_, DeadlineOf(*context_)));
  }

  void OnDone() override {
    AttentionService* const service = service_;
    delete this;
    const absl::MutexLock lock(&service->mutex_);
    --service->open_calls_;
  }

 private:
  // OK: the call is the scheduler's, and may have ended already.
  absl::Status Submit(const grpc::ByteBuffer& message) {
    const Options& options = service_->options_;
    if (auto status = options.token.Check(context_->client_metadata());
        !status.ok()) {
      return status;
    }
    if (!message.Valid()) {
      // Where the client went before its message came, there is none either.
      const absl::Time deadline = DeadlineOf(*context_);
      if (context_->IsCancelled() || absl::Now() >= deadline) {
        return StatusOfCancelled(arrival_, deadline);
      }
      return absl::InvalidArgumentError("the call came without a message");
    }
    if (const auto length = static_cast<int64_t>(message.Length());
        length > options.max_message_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the request message: expected at most ",
                       options.max_message_bytes, " bytes, got ", length));
    }
    TensorBytes bytes;
    if (!FromByteBuffer(message, &bytes)) {
      return absl::InvalidArgumentError(
          "the request message cannot be decompressed");
    }
    ReceivedRequest request;
    if (auto status = ParseAttentionRequest(bytes, &request); !status.ok()) {
      return status;
    }
    request_id_ = request.message.request_id().substr(0, kMaxRequestIdBytes);
    RequestLimits limits;
    limits.max_request_bytes = options.max_request_bytes;
    limits.max_message_bytes = options.max_message_bytes;
    limits.kernels = service_->scheduler_->Kernels();
    auto valid = ValidateRequest(request, limits);
    if (!valid.ok()) return valid.status();
    auto registration = service_->in_flight_.Register(request_id_);
    if (!registration.ok()) return registration.status();
    registration_ = *std::move(registration);
    request_id_ = registration_.id();
    auto reservation = service_->budget_->Reserve(valid->tensor_bytes);
    if (!reservation.ok()) return reservation.status();

    output_shape_ = std::move(valid->output_shape);
    input_bytes_ = valid->input_bytes;
    auto call = std::make_shared<PendingCall>(
        [this](absl::StatusOr<CallOutcome> outcome) {
          End(std::move(outcome));
        });
    call->request_id = request_id_;
    call->shape = std::move(valid->shape);
    call->options = valid->options;
    call->tensors = std::move(request.tensors);
    call->reservation = *std::move(reservation);
    call->deadline = DeadlineOf(*context_);
    dtype_ = call->shape.dtype;
    // Before it is submitted: from then on it may end at any moment.
    call_ = call;
    service_->scheduler_->Submit(call);
    return absl::OkStatus();
  }

  void End(absl::StatusOr<CallOutcome> outcome) {
    const absl::Status status = outcome.status();
    if (outcome.ok()) {
      Respond(*std::move(outcome));
    } else if (const auto delay = RetryHint(status)) {
      context_->AddTrailingMetadata(
          kRetryAfterKey, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
    }
    const grpc::Status grpc_status = ToGrpc(status);
    const double seconds = record_.SecondsSinceArrival();
    LogEnd(grpc_status, seconds);
    // All of it before the client can hear of the end: its next call may have
    // the same id, and a scrape after it must count this one.
    registration_.Release();
    record_.End(grpc_status.error_code());
    Finish(grpc_status);
  }

  void Respond(CallOutcome outcome) {
    Metrics& metrics = *service_->metrics_;
    v1::ExecutionReport& report = outcome.report;
    metrics.ObserveQueue(report.queue_seconds());
    for (const auto& [stage, seconds] : report.stage_seconds()) {
      metrics.ObserveStage(stage, seconds);
    }
    metrics.CountTensorBytes(Plane::kUnary, Direction::kIn, input_bytes_);
    metrics.CountTensorBytes(Plane::kUnary, Direction::kOut,
                             outcome.output.size());
    metrics.CountCommunicationBytes(
        FromProto(report.communication_precision())
            .value_or(CommunicationPrecision::kNative),
        outcome.communication_bytes);
    report.set_total_seconds(record_.SecondsSinceArrival());
    grpc::ByteBuffer response = MakeAttentionResponse(
        request_id_, ToProto(dtype_), output_shape_, outcome.output, report);
    response_->Swap(&response);
  }

  void LogEnd(const grpc::Status& status, double seconds) const {
    if (status.ok()) {
      Log(spdlog::level::info, "call ended",
          {{"request_id", request_id_}, {"code", "OK"}, {"seconds", seconds}});
      return;
    }
    Log(status.error_code() == grpc::StatusCode::INTERNAL ? spdlog::level::err
                                                          : spdlog::level::info,
        "call ended",
        {{"request_id", request_id_},
         {"code", CodeName(status.error_code())},
         {"seconds", seconds},
         {"error", status.error_message()}});
  }

  AttentionService* const service_;
  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  const absl::Time arrival_;
  CallRecord record_;
  std::string request_id_;
  InFlightRequests::Registration registration_;
  std::shared_ptr<PendingCall> call_;  // nullptr: refused before it was one
  std::vector<int64_t> output_shape_;
  int64_t input_bytes_ = 0;
  DataType dtype_ = DataType::kFloat32;
};

AttentionService::AttentionService(const GroupManager* manager,
                                   GroupScheduler* scheduler,
                                   ByteBudget* budget, Metrics* metrics,
                                   Options options)
    : manager_(manager),
      scheduler_(scheduler),
      budget_(budget),
      metrics_(metrics),
      options_(std::move(options)) {}

grpc::ServerUnaryReactor* AttentionService::Attention(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto* reactor = new AttentionReactor(this, context, response);
  reactor->Take(*request);
  return reactor;
}

grpc::ServerBidiReactor<v1::StreamAttentionRequest,
                        v1::StreamAttentionResponse>*
AttentionService::StreamAttention(grpc::CallbackServerContext* context) {
  class Refusal : public grpc::ServerBidiReactor<v1::StreamAttentionRequest,
                                                 v1::StreamAttentionResponse> {
   public:
    explicit Refusal(const grpc::Status& status) { Finish(status); }
    void OnDone() override { delete this; }
  };
  absl::Status status = options_.token.Check(context->client_metadata());
  if (status.ok()) {
    status = absl::UnimplementedError(
        "this server has no StreamAttention; use Attention, whose message may "
        "be as large as GetServerInfo's max_message_bytes");
  }
  const grpc::Status refusal = ToGrpc(status);
  CallRecord(metrics_, Method::kStreamAttention).End(refusal.error_code());
  return new Refusal(refusal);
}

grpc::ServerUnaryReactor* AttentionService::GetServerInfo(
    grpc::CallbackServerContext* context, const v1::GetServerInfoRequest*,
    v1::GetServerInfoResponse* response) {
  CallRecord record(metrics_, Method::kGetServerInfo);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (const auto status = options_.token.Check(context->client_metadata());
      !status.ok()) {
    const grpc::Status refusal = ToGrpc(status);
    record.End(refusal.error_code());
    reactor->Finish(refusal);
    return reactor;
  }
  response->set_version(options_.version);
  response->set_device(options_.device);
  for (const Group& group : manager_->Groups()) {
    v1::GroupInfo* info = response->add_groups();
    info->set_name(group.name);
    info->set_generation(group.generation);
    info->set_world_size(static_cast<uint32_t>(group.members.size()));
    // Formed, proven, and not answering its probe now.
    const bool silent = group.state == GroupState::kReady &&
                        !scheduler_->Ready(group.name, group.generation);
    info->set_state(
        std::string(Name(silent ? GroupState::kFailed : group.state)));
    for (const GroupMember& member : group.members) {
      info->add_workers(member.worker);
    }
  }
  response->set_max_message_bytes(
      static_cast<uint64_t>(options_.max_message_bytes));
  response->set_max_request_bytes(
      static_cast<uint64_t>(options_.max_request_bytes));
  for (const auto precision :
       {CommunicationPrecision::kNative, CommunicationPrecision::kFp8E4m3,
        CommunicationPrecision::kInt8}) {
    response->add_communication_precisions(ToProto(precision));
  }
  if (const auto kernels = scheduler_->Kernels()) {
    for (const AttentionKernelKind kernel : *kernels) {
      response->add_kernels(ToProto(kernel));
    }
  }
  record.End(grpc::StatusCode::OK);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

bool AttentionService::AwaitIdle(absl::Time deadline) {
  const absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return open_calls_ == 0;
  };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

}  // namespace ithaca::server
