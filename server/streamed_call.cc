#include "server/streamed_call.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/plan_policy.h"
#include "core/sequence_parallel_plan.h"
#include "server/group_scheduler.h"
#include "server/rank_message.h"
#include "server/request_validation.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

// Where a read fails, the client may have ended its side or gone altogether;
// gRPC says which a moment later.
constexpr absl::Duration kCancelGrace = absl::Milliseconds(20);

// A status waits behind a chunk that its client does not take. After this the
// stream is cut, and the client sees CANCELLED.
constexpr absl::Duration kCutAfter = absl::Seconds(5);

ChunkedTensors ChunkedTensorsOf(const CallRegions& regions) {
  return {regions.query.region == nullptr, regions.key.region == nullptr,
          regions.value.region == nullptr, regions.output.region == nullptr};
}

}  // namespace

// gRPC's end of it.
class StreamedCall::Reactor final : public StreamedCall::ServerReactor {
 public:
  explicit Reactor(std::shared_ptr<StreamedCall> call)
      : call_(std::move(call)) {}

  void OnReadDone(bool ok) override { call_->OnClientRead(ok); }
  void OnWriteDone(bool ok) override { call_->OnClientWritten(ok); }
  void OnCancel() override { call_->OnClientCancel(); }
  void OnDone() override {
    call_->OnClientDone();
    const Host* const host = call_->host_;
    delete this;
    host->on_closed();
  }

 private:
  const std::shared_ptr<StreamedCall> call_;
};

StreamedCall::ServerReactor* StreamedCall::Accept(
    const Host* host, grpc::CallbackServerContext* context) {
  auto call = std::make_shared<StreamedCall>(host, context);
  auto* const reactor = new Reactor(call);
  call->Begin(reactor);
  return reactor;
}

StreamedCall::StreamedCall(const Host* host,
                           grpc::CallbackServerContext* context)
    : host_(host),
      context_(context),
      client_call_(host->services, TensorTransport::kInChunks, context),
      since_(absl::Now()) {}

void StreamedCall::Begin(ServerReactor* reactor) {
  const absl::MutexLock lock(&mutex_);
  reactor_ = reactor;
  if (auto status = client_call_.CheckToken(); !status.ok()) {
    End(status);
    return;
  }
  ReadOn();
  ArmTimer();
}

// -------------------------------------------------------------------- upload

void StreamedCall::OnClientRead(bool ok) {
  absl::Status status;
  bool submit = false;
  {
    const absl::MutexLock lock(&mutex_);
    reading_ = false;
    if (phase_ == Phase::kEnded) return;
    Progress();
    if (ok) {
      status = TakePart();
      incoming_.Clear();
    } else {
      half_closed_ = true;
    }
    if (status.ok()) {
      submit = TakeTurn();
      ReadOn();
      ArmTimer();
    }
  }
  if (!status.ok()) Refuse(status);
  if (submit) host_->services->scheduler->Submit(call_);
}

absl::Status StreamedCall::TakePart() {
  ClientPart part;
  if (auto status = ParseClientPart(incoming_, &part); !status.ok()) {
    return status;
  }
  if (phase_ == Phase::kRequest) {
    if (part.kind != ClientPart::Kind::kRequest) {
      return absl::InvalidArgumentError(
          "the stream's first part: expected `request`, got another");
    }
    return TakeRequest(part.request);
  }
  if (part.kind != ClientPart::Kind::kChunk) {
    return absl::InvalidArgumentError(
        "a part after the stream's first: expected `chunk`, got another");
  }
  return TakeChunk(part);
}

absl::Status StreamedCall::TakeRequest(const TensorBytes& message) {
  auto call = client_call_.Admit(
      message,
      [self = shared_from_this()](absl::StatusOr<CallOutcome> outcome) {
        self->OnOutcome(std::move(outcome));
      });
  if (!call.ok()) return call.status();
  auto group = host_->services->scheduler->Bind(*call);
  if (!group.ok()) return group.status();
  // From here on the call ends by the scheduler.
  call_ = *std::move(call);
  phase_ = Phase::kUploading;

  const int world_size = group->channels->world_size();
  auto plan = MakeSequenceParallelPlan(
      call_->shape, call_->options, world_size,
      PlanPolicyFor(group->device, call_->shape, world_size));
  if (!plan.ok()) {
    return absl::InternalError(
        absl::StrCat("a checked call has no plan: ", plan.status().message()));
  }
  const ChunkedTensors chunked = ChunkedTensorsOf(call_->regions);
  scatter_.emplace(*plan, chunked);
  input_.emplace(*scatter_);
  merge_.emplace(*plan, chunked.output);
  std::vector<int64_t> output_bytes;
  output_bytes.reserve(static_cast<size_t>(world_size));
  std::vector<internal::v1::AttentionCall> opens;
  opens.reserve(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    output_bytes.push_back(merge_->rank_bytes(rank));
    opens.push_back(DescribeCall(*plan, call_->regions, call_->request_id,
                                 group->generation, /*call_number=*/0));
    opens.back().set_return_text_output(call_->shape.text_query_tokens() > 0 &&
                                        rank == TextOutputRank(*plan));
  }
  streams_ = std::make_shared<RankStreams>(
      std::move(group->channels), std::move(output_bytes), weak_from_this());
  call_->streams = streams_;
  streams_->Start(opens);
  return absl::OkStatus();
}

absl::Status StreamedCall::TakeChunk(const ClientPart& part) {
  const int64_t size = part.data.size();
  const auto role = input_->Accept(part.role, part.offset, size);
  if (!role.ok()) return role.status();
  for (const RankPart& to :
       scatter_->Split(*role, static_cast<int64_t>(part.offset), size)) {
    std::vector<grpc::Slice> slices;
    part.data.AppendRange(to.chunk_offset, to.size, &slices);
    TensorBytes bytes;
    for (grpc::Slice& slice : slices) bytes.Append(std::move(slice));
    streams_->Send(to.rank, to.rank_offset, bytes);
  }
  return absl::OkStatus();
}

bool StreamedCall::TakeTurn() {
  if (phase_ != Phase::kUploading || !input_->complete() ||
      streams_->unsent_bytes() > 0) {
    return false;
  }
  phase_ = Phase::kSubmitted;
  return true;
}

void StreamedCall::ReadOn() {
  if (reading_ || half_closed_ || phase_ == Phase::kEnded) return;
  if (phase_ == Phase::kUploading && !input_->complete() &&
      streams_->unsent_bytes() >= kMaxUnsentBytes) {
    return;
  }
  reading_ = true;
  reactor_->StartRead(&incoming_);
}

void StreamedCall::OnSent() {
  bool submit = false;
  {
    const absl::MutexLock lock(&mutex_);
    if (phase_ != Phase::kUploading) return;
    Progress();
    submit = TakeTurn();
    ReadOn();
    ArmTimer();
  }
  if (submit) host_->services->scheduler->Submit(call_);
}

// ---------------------------------------------------------------------- ends

void StreamedCall::OnBroken(int rank, const grpc::Status& status) {
  const absl::Status broken = FromGrpc(status);
  const std::string why = absl::StrCat("rank ", rank, "'s stream broke off: ",
                                       absl::StatusCodeToString(broken.code()),
                                       ": ", broken.message());
  Refuse(absl::IsInternal(broken) ? absl::InternalError(why)
                                  : UnavailableForNow(why));
}

void StreamedCall::OnClientCancel() { Refuse(client_call_.Cancelled()); }

void StreamedCall::OnClientDone() {
  const absl::MutexLock lock(&mutex_);
  reactor_ = nullptr;
}

void StreamedCall::Refuse(const absl::Status& status) {
  {
    const absl::MutexLock lock(&mutex_);
    if (phase_ == Phase::kEnded) return;
    if (phase_ == Phase::kRequest || phase_ == Phase::kAnswering) {
      End(status);
      return;
    }
    // Its outcome may be on its way already.
    if (verdict_.ok()) verdict_ = status;
  }
  host_->services->scheduler->Cancel(call_, status);
}

void StreamedCall::OnOutcome(absl::StatusOr<CallOutcome> outcome) {
  const absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kEnded) return;
  if (!verdict_.ok()) {
    End(verdict_);
  } else if (!outcome.ok()) {
    End(outcome.status());
  } else {
    Answer(*std::move(outcome));
  }
}

void StreamedCall::End(const absl::Status& status) {
  phase_ = Phase::kEnded;
  if (streams_ != nullptr) streams_->Abandon();
  reservation_.Release();
  if (status.ok()) client_call_.RecordOutput(merge_->total_bytes());
  merge_.reset();  // and what it holds
  reactor_->Finish(client_call_.End(status));
  Progress();
  ArmTimer();
}

// --------------------------------------------------------------------- times

void StreamedCall::Progress() { since_ = absl::Now(); }

absl::Duration StreamedCall::Patience() const {
  switch (phase_) {
    case Phase::kRequest:
      return half_closed_ ? kCancelGrace : host_->idle_timeout;
    case Phase::kUploading:
      if (input_->complete()) return host_->rank_timeout;
      if (half_closed_) return kCancelGrace;
      return reading_ ? host_->idle_timeout : host_->rank_timeout;
    case Phase::kSubmitted:
      break;
    case Phase::kAnswering:
      return writing_ ? host_->idle_timeout : host_->rank_timeout;
    case Phase::kEnded:
      if (writing_ && reactor_ != nullptr) return kCutAfter;
      break;
  }
  return absl::InfiniteDuration();
}

absl::Status StreamedCall::Late() const {
  const auto idle = [this](absl::string_view what) {
    return absl::DeadlineExceededError(absl::StrCat(
        "the client ", what, " for ", absl::FormatDuration(host_->idle_timeout),
        ", the server's --stream-idle-timeout-seconds"));
  };
  switch (phase_) {
    case Phase::kRequest:
      if (!half_closed_) return idle("sent no `request`");
      return absl::InvalidArgumentError(
          "the stream ended before its first part, `request`");
    case Phase::kUploading:
      if (input_->complete()) break;
      if (half_closed_) return input_->Missing();
      if (reading_) return idle("sent no chunk");
      break;
    case Phase::kAnswering:
      if (writing_) return idle("did not take its output");
      break;
    case Phase::kSubmitted:
    case Phase::kEnded:
      break;
  }
  return UnavailableForNow(
      absl::StrCat("the call's ranks made no progress for ",
                   absl::FormatDuration(host_->rank_timeout)));
}

void StreamedCall::ArmTimer() {
  const absl::Time due = since_ + Patience();
  if (due >= timer_at_) return;
  timer_at_ = due;
  host_->timers->At(due, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->OnTimer();
  });
}

void StreamedCall::OnTimer() {
  absl::Status late;
  {
    const absl::MutexLock lock(&mutex_);
    timer_at_ = absl::InfiniteFuture();
    if (absl::Now() < since_ + Patience()) {
      ArmTimer();
      return;
    }
    if (phase_ == Phase::kEnded) {
      context_->TryCancel();
      return;
    }
    late = Late();
  }
  Refuse(late);
}

}  // namespace ithaca::server
