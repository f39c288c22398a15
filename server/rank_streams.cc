#include "server/rank_streams.h"

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/fan_out.h"
#include "server/rank_refusal.h"
#include "server/stream_message.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

namespace {

constexpr char kStreamAttention[] =
    "/ithaca.internal.v1.RankService/StreamAttention";

grpc::Status Internal(const std::string& why) {
  return {grpc::StatusCode::INTERNAL, why};
}

}  // namespace

// One rank's stream. A hold keeps it from ending while operations may be begun
// from outside its reactions: from the start until Close.
class RankStreams::Leg
    : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Leg(RankStreams* owner, int rank, int64_t output_bytes)
      : owner(owner), rank(rank), output_bytes(output_bytes) {}

  void OnReadDone(bool ok) override { owner->OnRead(this, ok); }
  void OnWriteDone(bool ok) override { owner->OnWritten(this, ok); }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<RankStreams> last = owner->shared_from_this();
    owner->OnEnded(this, status);
  }

  struct Outgoing {
    grpc::ByteBuffer message;
    int64_t bytes = 0;  // of tensors
    bool last = false;
  };

  RankStreams* const owner;
  const int rank;
  const int64_t output_bytes;
  std::shared_ptr<RankStreams> alive;  // from start to OnDone
  grpc::ClientContext context;

  // The rest by the owner's lock.
  std::deque<Outgoing> queue;  // the first is being written if `writing`
  bool writing = false;
  grpc::ByteBuffer incoming;
  bool reading = false;
  bool closed = false;  // nothing may be begun any more
  bool answered = false;
  bool ended = false;
  int64_t received = 0;  // of its output
  internal::v1::RankExecution execution;
  std::optional<grpc::Status> broken;  // we ended it, and why
  grpc::Status status;
};

RankStreams::RankStreams(std::shared_ptr<RankChannels> channels,
                         std::vector<int64_t> output_bytes,
                         std::weak_ptr<Observer> observer)
    : channels_(std::move(channels)),
      observer_(std::move(observer)),
      missing_(static_cast<int>(output_bytes.size())) {
  for (size_t rank = 0; rank < output_bytes.size(); ++rank) {
    legs_.push_back(std::make_unique<Leg>(this, static_cast<int>(rank),
                                          output_bytes[rank]));
  }
}

RankStreams::~RankStreams() = default;

void RankStreams::Start(const std::vector<internal::v1::AttentionCall>& opens) {
  static const std::string* const method = new std::string(kStreamAttention);
  const absl::MutexLock lock(&mutex_);
  for (const auto& leg : legs_) {
    leg->alive = shared_from_this();
    channels_->stub(leg->rank).PrepareBidiStreamingCall(
        &leg->context, *method, grpc::StubOptions(), leg.get());
    leg->AddHold();
    // The first answer; and so the end of a rank is heard of at once.
    Read(leg.get());
    Queue(leg.get(), MakeRankOpen(opens[static_cast<size_t>(leg->rank)]), 0,
          /*last=*/false);
    leg->StartCall();
  }
}

void RankStreams::Send(int rank, int64_t offset, const TensorBytes& bytes) {
  const absl::MutexLock lock(&mutex_);
  Queue(legs_[static_cast<size_t>(rank)].get(), MakeRankChunk(offset, bytes),
        bytes.size(), /*last=*/false);
}

int64_t RankStreams::unsent_bytes() const {
  const absl::MutexLock lock(&mutex_);
  return unsent_bytes_;
}

bool RankStreams::Claim() {
  const absl::MutexLock lock(&mutex_);
  if (abandoned_) return false;
  for (const auto& leg : legs_) {
    if (leg->closed) return false;
  }
  claimed_ = true;
  return true;
}

void RankStreams::Run(uint64_t call_number, RunCallbacks callbacks) {
  // Gone since Claim, and told of by nobody yet.
  std::vector<const Leg*> gone;
  const auto on_failure = callbacks.on_failure;
  {
    const absl::MutexLock lock(&mutex_);
    running_ = true;
    callbacks_ = std::move(callbacks);
    for (const auto& leg : legs_) {
      if (leg->ended) {
        gone.push_back(leg.get());
      } else {
        Queue(leg.get(), MakeRankRun(call_number), 0, /*last=*/true);
      }
    }
  }
  for (const Leg* leg : gone) {
    on_failure(leg->rank, leg->status);
    CountAnswer();
  }
}

const grpc::Status& RankStreams::status(int rank) const {
  const absl::MutexLock lock(&mutex_);
  return legs_[static_cast<size_t>(rank)]->status;
}

const internal::v1::RankExecution& RankStreams::execution(int rank) const {
  const absl::MutexLock lock(&mutex_);
  return legs_[static_cast<size_t>(rank)]->execution;
}

void RankStreams::ReadOutput(int rank) {
  const absl::MutexLock lock(&mutex_);
  Read(legs_[static_cast<size_t>(rank)].get());
}

void RankStreams::Abandon() {
  const absl::MutexLock lock(&mutex_);
  abandoned_ = true;
  if (!claimed_ || (running_ && missing_ == 0)) CancelLegs();
}

void RankStreams::Cancel() {
  const absl::MutexLock lock(&mutex_);
  CancelLegs();
}

// ----------------------------------------------------------------- a stream

void RankStreams::OnRead(Leg* leg, bool ok) {
  RankAnswerPart part;
  bool accepted = false;
  bool abandoned = false;
  {
    const absl::MutexLock lock(&mutex_);
    leg->reading = false;
    if (!ok) {
      Close(leg);
    } else if (!leg->closed) {
      accepted = Accept(leg, &part);
    }
    leg->incoming.Clear();
    abandoned = abandoned_;
    // Up to the stream's end, so that it ends well.
    if (accepted && leg->received == leg->output_bytes) Read(leg);
  }
  if (!accepted) return;
  if (part.kind == RankAnswerPart::Kind::kExecution) {
    CountAnswer();
  } else if (const auto observer = observer_.lock();
             observer != nullptr && !abandoned) {
    observer->OnOutput(leg->rank, part.offset, part.data);
  }
}

bool RankStreams::Accept(Leg* leg, RankAnswerPart* part) {
  if (auto status = ParseRankAnswerPart(leg->incoming, part); !status.ok()) {
    Break(leg, std::string(status.message()));
    return false;
  }
  if (part->kind == RankAnswerPart::Kind::kExecution) {
    if (leg->answered || !running_) {
      Break(leg, "an execution that nobody waited for");
      return false;
    }
    leg->answered = true;
    leg->execution = std::move(part->execution);
    return true;
  }
  if (!leg->answered || part->data.size() > leg->output_bytes - leg->received) {
    Break(leg, absl::StrCat("expected ", leg->output_bytes,
                            " bytes of output after its execution, got more"));
    return false;
  }
  leg->received += part->data.size();
  return true;
}

void RankStreams::OnWritten(Leg* leg, bool ok) {
  bool tell = false;
  {
    const absl::MutexLock lock(&mutex_);
    leg->writing = false;
    unsent_bytes_ -= leg->queue.front().bytes;
    tell = leg->queue.front().bytes > 0 && !abandoned_;
    leg->queue.pop_front();
    if (ok && !leg->closed) {
      WriteNext(leg);
    } else {
      DropQueue(leg);
      // A read that is under way will tell of the end.
      if (!leg->reading) Close(leg);
    }
  }
  if (!tell) return;
  if (const auto observer = observer_.lock()) observer->OnSent();
}

void RankStreams::OnEnded(Leg* leg, const grpc::Status& status) {
  grpc::Status end;
  bool broken = false;
  bool counts = false;
  std::function<void(int, const grpc::Status&)> on_failure;
  {
    const absl::MutexLock lock(&mutex_);
    leg->ended = true;
    leg->alive = nullptr;
    DropQueue(leg);
    const bool whole = leg->answered && leg->received == leg->output_bytes;
    end = leg->broken.value_or(status);
    if (!whole && end.ok()) end = Internal("its stream ended too soon");
    if (!leg->answered) {
      leg->status = end;
      counts = running_;
      if (running_ && !LeavesGroupIntact(end)) {
        on_failure = callbacks_.on_failure;
      }
    }
    // Between Claim and Run nobody is told: Run will see it.
    broken = !whole && !abandoned_ && (leg->answered || !claimed_);
  }
  if (on_failure) on_failure(leg->rank, end);
  if (counts) CountAnswer();
  if (!broken) return;
  if (const auto observer = observer_.lock())
    observer->OnBroken(leg->rank, end);
}

void RankStreams::CountAnswer() {
  RunCallbacks done;
  {
    const absl::MutexLock lock(&mutex_);
    if (--missing_ > 0) return;
    // What the callbacks hold may hold this.
    done = std::move(callbacks_);
    if (abandoned_) CancelLegs();
  }
  done.on_done();
}

// --------------------------------------------------------------- operations

void RankStreams::Queue(Leg* leg, const grpc::ByteBuffer& message,
                        int64_t bytes, bool last) {
  if (leg->closed) return;
  leg->queue.push_back({message, bytes, last});
  unsent_bytes_ += bytes;
  if (!leg->writing) WriteNext(leg);
}

void RankStreams::WriteNext(Leg* leg) {
  if (leg->queue.empty()) return;
  const Leg::Outgoing& next = leg->queue.front();
  leg->writing = true;
  grpc::WriteOptions options;
  if (next.last) {
    leg->StartWriteLast(&next.message, options);
  } else {
    leg->StartWrite(&next.message, options);
  }
}

// All but what is being written.
void RankStreams::DropQueue(Leg* leg) {
  while (leg->queue.size() > (leg->writing ? 1 : 0)) {
    unsent_bytes_ -= leg->queue.back().bytes;
    leg->queue.pop_back();
  }
}

void RankStreams::Read(Leg* leg) {
  if (leg->closed || leg->reading) return;
  leg->reading = true;
  leg->StartRead(&leg->incoming);
}

void RankStreams::Close(Leg* leg) {
  if (leg->closed) return;
  leg->closed = true;
  leg->RemoveHold();
}

void RankStreams::Break(Leg* leg, const std::string& why) {
  leg->broken = Internal(why);
  leg->context.TryCancel();
  Close(leg);
}

void RankStreams::CancelLegs() {
  for (const auto& leg : legs_) {
    if (leg->alive == nullptr) continue;  // not started, or ended
    leg->context.TryCancel();
    Close(leg.get());
  }
}

}  // namespace ithaca::server
