#include "server/client_call.h"

#include <grpcpp/server_context.h>
#include <spdlog/common.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "ithaca/v1/attention.pb.h"
#include "server/attention_message.h"
#include "server/logging.h"
#include "server/protocol_enums.h"
#include "server/region_access.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max()
             ? absl::InfiniteFuture()
             : absl::FromChrono(deadline);
}

}  // namespace

ClientCall::ClientCall(CallServices* services, TensorTransport transport,
                       grpc::CallbackServerContext* context)
    : services_(services),
      transport_(transport),
      context_(context),
      arrival_(absl::Now()),
      inline_plane_(transport == TensorTransport::kInMessage ? Plane::kUnary
                                                             : Plane::kStream),
      plane_(inline_plane_),
      record_(services->metrics, transport == TensorTransport::kInMessage
                                     ? Method::kAttention
                                     : Method::kStreamAttention) {}

absl::Status ClientCall::CheckToken() const {
  return services_->token.Check(context_->client_metadata());
}

absl::StatusOr<std::shared_ptr<PendingCall>> ClientCall::Admit(
    const TensorBytes& message, PendingCall::EndFunction on_end) {
  ReceivedRequest request;
  if (auto status = ParseAttentionRequest(message, &request); !status.ok()) {
    return status;
  }
  request_id_ = request.message.request_id().substr(0, kMaxRequestIdBytes);
  RequestLimits limits;
  limits.max_request_bytes = services_->max_request_bytes;
  limits.max_message_bytes = services_->max_message_bytes;
  limits.kernels = services_->scheduler->Kernels();
  if (services_->regions != nullptr) {
    limits.regions = [table = services_->regions,
                      access = AccessOf(*context_)](const std::string& name) {
      return table->Pin(name, access);
    };
  }
  auto valid = ValidateRequest(request, limits, transport_);
  if (!valid.ok()) return valid.status();
  auto registration = services_->in_flight->Register(request_id_);
  if (!registration.ok()) return registration.status();
  registration_ = *std::move(registration);
  request_id_ = registration_.id();
  auto reservation = services_->budget->Reserve(valid->inline_bytes);
  if (!reservation.ok()) return reservation.status();

  output_shape_ = std::move(valid->output_shape);
  input_bytes_[static_cast<size_t>(inline_plane_)] = valid->input_bytes;
  TakeRegions(valid->regions);
  auto call = std::make_shared<PendingCall>(std::move(on_end));
  call->request_id = request_id_;
  call->shape = std::move(valid->shape);
  call->options = valid->options;
  call->tensors = std::move(request.tensors);
  call->regions = std::move(valid->regions);
  call->reservation = *std::move(reservation);
  call->deadline = DeadlineOf(*context_);
  dtype_ = call->shape.dtype;
  return call;
}

void ClientCall::TakeRegions(const CallRegions& regions) {
  const auto plane_of = [](const RegionPart& part) {
    return part.region->kind() == MemoryKind::kShared ? Plane::kSharedMemory
                                                      : Plane::kCudaMemory;
  };
  for (const RegionPart* part :
       {&regions.query, &regions.key, &regions.value}) {
    if (part->region == nullptr) continue;
    plane_ = plane_of(*part);
    const auto bytes = static_cast<int64_t>(part->byte_size);
    input_bytes_[static_cast<size_t>(inline_plane_)] -= bytes;
    input_bytes_[static_cast<size_t>(plane_)] += bytes;
  }
  if (regions.output.region == nullptr) return;
  plane_ = plane_of(regions.output);
  output_slice_.emplace();
  output_slice_->set_region(regions.output.region->name);
  output_slice_->set_offset(regions.output.offset);
  output_slice_->set_byte_size(regions.output.byte_size);
}

absl::Status ClientCall::Cancelled() const {
  // Client and server each time the deadline on their own, and the client's
  // cancellation may arrive a little before the server's clock says so.
  const absl::Time deadline = DeadlineOf(*context_);
  const absl::Duration tolerance =
      absl::Milliseconds(20) + 0.02 * (deadline - arrival_);
  if (deadline != absl::InfiniteFuture() &&
      absl::Now() >= deadline - tolerance) {
    return absl::DeadlineExceededError("the call's deadline passed");
  }
  return absl::CancelledError("the client cancelled the call");
}

void ClientCall::RecordAnswer(CallOutcome* outcome) {
  Metrics& metrics = *services_->metrics;
  ithaca::v1::ExecutionReport& report = outcome->report;
  metrics.ObserveQueue(report.queue_seconds());
  for (const auto& [stage, seconds] : report.stage_seconds()) {
    metrics.ObserveStage(stage, seconds);
  }
  for (size_t plane = 0; plane < kNumPlanes; ++plane) {
    metrics.CountTensorBytes(static_cast<Plane>(plane), Direction::kIn,
                             input_bytes_[plane]);
  }
  if (output_slice_.has_value()) {
    metrics.CountTensorBytes(plane_, Direction::kOut,
                             static_cast<int64_t>(output_slice_->byte_size()));
  }
  metrics.CountCommunicationBytes(
      FromProto(report.communication_precision())
          .value_or(CommunicationPrecision::kNative),
      outcome->communication_bytes);
  const double seconds = record_.SecondsSinceArrival();
  report.set_total_seconds(seconds);
  coordinator_seconds_ = std::max(
      0.0, seconds - outcome->slowest_rank_seconds - report.queue_seconds());
}

void ClientCall::RecordOutput(int64_t bytes) {
  services_->metrics->CountTensorBytes(inline_plane_, Direction::kOut, bytes);
}

grpc::Status ClientCall::End(const absl::Status& status) {
  if (const auto delay = RetryHint(status)) {
    context_->AddTrailingMetadata(
        kRetryAfterKey, absl::StrCat(absl::ToInt64Milliseconds(*delay)));
  }
  context_->AddTrailingMetadata(kPlaneKey, std::string(Name(plane_)));
  grpc::Status grpc_status = ToGrpc(status);
  LogEnd(grpc_status);
  registration_.Release();
  record_.End(grpc_status.error_code());
  return grpc_status;
}

void ClientCall::LogEnd(const grpc::Status& status) const {
  const double seconds = record_.SecondsSinceArrival();
  if (status.ok()) {
    Log(spdlog::level::info, "call ended",
        {{"request_id", request_id_},
         {"code", "OK"},
         {"plane", Name(plane_)},
         {"seconds", seconds},
         {"coordinator_seconds", coordinator_seconds_}});
    return;
  }
  Log(status.error_code() == grpc::StatusCode::INTERNAL ? spdlog::level::err
                                                        : spdlog::level::info,
      "call ended",
      {{"request_id", request_id_},
       {"code", CodeName(status.error_code())},
       {"plane", Name(plane_)},
       {"seconds", seconds},
       {"error", status.error_message()}});
}

}  // namespace ithaca::server
