#include "worker/rank_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/call_conversion.h"
#include "worker/call_tensors.h"
#include "worker/rank_status.h"

namespace ithaca {
namespace {

// Large enough that a message's own cost does not count, small enough that the
// coordinator can pass one on while the next is on its way.
constexpr int64_t kChunkBytes = int64_t{1} << 20;

}  // namespace

RankStream::RankStream(const Host* host, const absl::Status& admission)
    : host_(host) {
  if (admission.ok()) {
    StartRead(&message_);
  } else {
    End(admission);
  }
}

void RankStream::OnReadDone(bool ok) {
  if (!ok) return End(absl::CancelledError("the stream ended before `run`"));
  StreamPart part;
  absl::Status status = ParseStreamPart(message_, &part);
  message_.Clear();
  if (status.ok()) {
    if (const auto* run = std::get_if<internal::v1::RunStaged>(&part.part);
        run != nullptr && call_.has_value()) {
      return Run(run->call_number());
    }
    status = Take(std::move(part));
  }
  if (!status.ok()) return End(status);
  StartRead(&message_);
}

absl::Status RankStream::Take(StreamPart part) {
  if (const auto* open = std::get_if<internal::v1::AttentionCall>(&part.part)) {
    return Open(*open);
  }
  if (!call_.has_value()) return absl::InternalError("no `open` came first");
  return Stage(std::get<StagedChunk>(part.part));
}

absl::Status RankStream::Open(const internal::v1::AttentionCall& message) {
  if (call_.has_value()) return absl::InternalError("a second `open`");
  const auto session = host_->sessions->Find(message.generation());
  if (!session.ok()) return session.status();
  const GroupMembership& place = (*session)->membership();

  absl::StatusOr<RankCall> call = ToRankCall(message);
  if (!call.ok()) return absl::InternalError(call.status().message());
  // Any policy's: lanes have no say in a rank's shares.
  const auto plan =
      MakeSequenceParallelPlan(call->shape, call->options, place.world_size);
  if (!plan.ok()) return absl::InternalError(plan.status().message());

  const int64_t bytes = InlineInputBytes(*plan, place.rank, *call);
  auto buffer = host_->staging->Take(bytes);
  // Kept until there is a number to refuse: the other ranks wait for it.
  call->refusal = buffer.status();
  staged_.emplace(buffer.ok() ? *std::move(buffer) : nullptr, bytes);
  if (!call->output.has_value()) {
    unsent_ = OutputInTokenOrder(*plan, place.rank, call->return_text_output);
    std::reverse(unsent_.begin(), unsent_.end());
  }
  generation_ = message.generation();
  call_ = *std::move(call);
  return absl::OkStatus();
}

absl::Status RankStream::Stage(const StagedChunk& chunk) {
  const absl::Status status = staged_->Put(chunk.offset, chunk.data);
  return status.ok() ? status : absl::InternalError(status.message());
}

void RankStream::Run(uint64_t call_number) {
  RankCall call = *std::move(call_);
  call.number = call_number;
  if (call.refusal.ok() && staged_->missing() > 0) {
    call.refusal = absl::InternalError(
        absl::StrCat("`run` came before ", staged_->missing(), " of ",
                     staged_->bytes(), " bytes"));
  }
  if (call.refusal.ok()) {
    call.tensors = {std::string_view(staged_->buffer()->data(),
                                     static_cast<size_t>(staged_->bytes()))};
    call.tensors_are_pinned = staged_->buffer()->is_pinned();
    call.tensors_owner = staged_->buffer();
  }
  staged_.reset();
  const auto session = host_->sessions->Find(generation_);
  if (!session.ok()) return End(session.status());
  // Once it is submitted, this may be gone at any time.
  const absl::Status submitted = (*session)->Submit(
      std::move(call),
      [this](absl::StatusOr<RankResult> result) { Answer(std::move(result)); });
  if (!submitted.ok()) End(submitted);
}

void RankStream::Answer(absl::StatusOr<RankResult> result) {
  if (!result.ok()) return End(result.status());
  host_->on_report(result->report);
  output_ = std::move(result->output);
  message_ = FrameExecution(ToProto(*result));
  StartWrite(&message_);
}

void RankStream::OnWriteDone(bool ok) {
  if (!ok) return End(absl::CancelledError("nobody reads the output"));
  if (!WriteChunk()) End(absl::OkStatus());
}

bool RankStream::WriteChunk() {
  std::vector<ByteRange> ranges;
  int64_t room = kChunkBytes;
  while (room > 0 && !unsent_.empty()) {
    ByteRange& next = unsent_.back();
    const int64_t size = std::min(room, next.size);
    ranges.push_back({next.begin, size});
    room -= size;
    next.begin += size;
    next.size -= size;
    if (next.size == 0) unsent_.pop_back();
  }
  if (ranges.empty()) return false;
  message_ = FrameChunk(sent_, output_, ranges);
  sent_ += static_cast<uint64_t>(kChunkBytes - room);
  StartWrite(&message_);
  return true;
}

void RankStream::End(const absl::Status& status) {
  // gRPC may be long in letting go of this.
  staged_.reset();
  message_.Clear();
  output_.reset();
  Finish(ToRankStatus(status));
}

}  // namespace ithaca
