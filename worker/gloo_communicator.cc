#include "worker/gloo_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gloo/transport/unbound_buffer.h"
#include "worker/call_refusal.h"
#include "worker/call_vote.h"

namespace ithaca {
namespace {

using ::gloo::transport::UnboundBuffer;

// Slots tell messages between two ranks apart. Exchanges count up below the
// votes, and start anew long after the first ones are done.
constexpr uint64_t kVoteSlots = uint64_t{1} << 62;
constexpr uint64_t kWatchSlot = uint64_t{1} << 63;

uint64_t ExchangeSlot(ExchangeId id) {
  return id * GlooTransfer::kSlots % kVoteSlots;
}

// A vote on the wire, between processes of the same build and architecture.
struct WireVote {
  uint64_t call_number = 0;
  uint64_t plan_fingerprint = 0;
  uint64_t code = 0;
};

}  // namespace

// The votes of all ranks, call after call. Receives for the next round are
// announced ahead, so that a vote costs one message and no round trip.
class GlooCommunicator::Ballot {
 public:
  // Throws Gloo's exceptions.
  Ballot(GlooMesh& mesh, int rank, int world_size)
      : rank_(rank), votes_(static_cast<size_t>(world_size)) {
    sender_ = mesh.MakeBuffer(&own_, sizeof(own_));
    receivers_.resize(votes_.size());
    for (size_t peer = 0; peer < votes_.size(); ++peer) {
      if (!IsPeer(peer)) continue;
      receivers_[peer] = mesh.MakeBuffer(&votes_[peer], sizeof(WireVote));
    }
    PostReceives();
  }

  // All votes of this round, by rank. Errors: kUnavailable.
  absl::StatusOr<std::vector<CallVote>> Cast(const CallVote& vote,
                                             absl::Duration limit) {
    const absl::Time deadline = absl::Now() + limit;
    std::vector<CallVote> votes(votes_.size());
    votes[static_cast<size_t>(rank_)] = vote;
    own_ = {vote.call_number, vote.plan_fingerprint,
            static_cast<uint64_t>(vote.code)};
    bool done = true;
    size_t peer = 0;
    absl::Status status = CatchGloo([&] {
      for (peer = 0; peer < votes_.size(); ++peer) {
        if (IsPeer(peer)) sender_->send(static_cast<int>(peer), slot_);
      }
      for (peer = 0; done && peer < votes_.size(); ++peer) {
        if (!IsPeer(peer)) continue;
        done = receivers_[peer]->waitRecv(nullptr, Left(deadline));
        votes[peer] = {votes_[peer].call_number, votes_[peer].plan_fingerprint,
                       static_cast<absl::StatusCode>(votes_[peer].code)};
      }
      for (size_t sent = 1; done && sent < votes_.size(); ++sent) {
        done = sender_->waitSend(nullptr, Left(deadline));
      }
      if (!done) return;
      ++slot_;
      PostReceives();
    });
    if (status.ok() && !done) status = absl::UnavailableError("aborted");
    if (!status.ok()) {
      return absl::UnavailableError(
          absl::StrCat("vote with rank ", peer, ": ", status.message()));
    }
    return votes;
  }

  void Wake() {
    sender_->abortWaitSend();
    for (size_t peer = 0; peer < votes_.size(); ++peer) {
      if (IsPeer(peer)) receivers_[peer]->abortWaitRecv();
    }
  }

 private:
  static std::chrono::milliseconds Left(absl::Time deadline) {
    return std::max(absl::ToChronoMilliseconds(deadline - absl::Now()),
                    std::chrono::milliseconds(1));
  }

  bool IsPeer(size_t rank) const { return rank != static_cast<size_t>(rank_); }

  void PostReceives() {
    for (size_t peer = 0; peer < votes_.size(); ++peer) {
      if (IsPeer(peer)) receivers_[peer]->recv(static_cast<int>(peer), slot_);
    }
  }

  const int rank_;
  uint64_t slot_ = kVoteSlots;
  WireVote own_;
  std::vector<WireVote> votes_;  // by rank, as received
  std::unique_ptr<UnboundBuffer> sender_;
  std::vector<std::unique_ptr<UnboundBuffer>> receivers_;  // by rank
};

// Tells at once when a connection ends. Gloo tells only the buffers that no
// byte was yet exchanged for; a receive from every peer that nobody ever sends
// to is always one of those.
class GlooCommunicator::Watch {
 public:
  // Calls `on_lost` on a thread of its own, at most once. Throws Gloo's
  // exceptions.
  Watch(GlooMesh& mesh, int rank, int world_size,
        std::function<void(const absl::Status&)> on_lost)
      : buffer_(mesh.MakeBuffer(byte_.data(), byte_.size())) {
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer != rank) buffer_->recv(peer, kWatchSlot);
    }
    thread_ = std::thread([this, on_lost = std::move(on_lost)] {
      const absl::Status status = CatchGloo([this] {
        buffer_->waitRecv(nullptr, std::chrono::hours(24 * 365 * 10));
      });
      if (!status.ok()) on_lost(status);
    });
  }

  ~Watch() {
    buffer_->abortWaitRecv();
    thread_.join();
  }

 private:
  std::array<char, 1> byte_ = {};
  const std::unique_ptr<UnboundBuffer> buffer_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<GlooCommunicator>> GlooCommunicator::Form(
    RendezvousStore& store, int rank, int world_size,
    const GlooOptions& options) {
  const absl::Time deadline = absl::Now() + options.formation_timeout;
  std::unique_ptr<GlooMesh> mesh;
  if (world_size > 1) {
    absl::StatusOr<std::unique_ptr<GlooMesh>> connected =
        GlooMesh::Connect(store, rank, world_size, options.address, deadline);
    if (!connected.ok()) return connected.status();
    mesh = *std::move(connected);
  }
  std::unique_ptr<GlooCommunicator> communicator(new GlooCommunicator(
      rank, world_size, options.collective_timeout, std::move(mesh)));
  if (world_size == 1) return communicator;

  absl::Status status = CatchGloo([&] {
    communicator->ballot_ =
        std::make_unique<Ballot>(*communicator->mesh_, rank, world_size);
    communicator->watch_ = std::make_unique<Watch>(
        *communicator->mesh_, rank, world_size,
        [self = communicator.get()](const absl::Status& why) {
          self->Lose(why).IgnoreError();
        });
  });
  // A first vote, of no call: connected is not yet alive.
  if (status.ok()) {
    status = communicator->AgreeWithin({0, static_cast<uint64_t>(world_size)},
                                       deadline - absl::Now());
  }
  if (status.ok()) return communicator;
  if (absl::Now() >= deadline) {
    return absl::DeadlineExceededError(status.message());
  }
  return status;
}

GlooCommunicator::GlooCommunicator(int rank, int world_size,
                                   absl::Duration timeout,
                                   std::unique_ptr<GlooMesh> mesh)
    : rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      mesh_(std::move(mesh)) {}

GlooCommunicator::~GlooCommunicator() {
  watch_.reset();
  absl::MutexLock lock(&mutex_);
  // Without this the connections would end softly, once sent bytes are read.
  if (!transfers_.empty()) mesh_->Close();
  transfers_.clear();
  ballot_.reset();
}

absl::Status GlooCommunicator::Agree(const CallVote& vote) {
  return AgreeWithin(vote, timeout_);
}

absl::Status GlooCommunicator::AgreeWithin(const CallVote& vote,
                                           absl::Duration limit) {
  if (absl::Status status = lost(); !status.ok()) return status;
  if (world_size_ == 1) return CountVotes({&vote, 1});
  absl::StatusOr<std::vector<CallVote>> votes = ballot_->Cast(vote, limit);
  if (!votes.ok()) return Lose(votes.status());
  absl::Status result = CountVotes(*votes);
  if (!GroupSurvives(result)) {
    absl::MutexLock lock(&mutex_);
    if (lost_.ok()) lost_ = absl::UnavailableError(result.message());
  }
  return result;
}

absl::StatusOr<ExchangeId> GlooCommunicator::StartExchange(
    absl::Span<const SendSegment> sends, absl::Span<const RecvSegment> recvs) {
  const ExchangeId id = num_exchanges_.fetch_add(1);
  if (world_size_ == 1) {
    if (absl::Status status = lost(); !status.ok()) return status;
    return id;
  }
  GlooTransfer* transfer = nullptr;
  absl::Status status = CatchGloo([&] {
    auto made = std::make_unique<GlooTransfer>(*mesh_, rank_, world_size_,
                                               sends, recvs);
    transfer = made.get();
    absl::MutexLock lock(&mutex_);
    // From here on Lose wakes it, so posting it into a lost group is no harm.
    transfers_.push_back(std::move(made));
  });
  if (status.ok()) status = lost();
  if (status.ok()) {
    status = CatchGloo([&] { transfer->Post(ExchangeSlot(id)); });
  }
  if (!status.ok()) return Lose(status);
  return id;
}

absl::Status GlooCommunicator::WaitExchange(ExchangeId /*id*/) {
  if (absl::Status status = lost(); !status.ok()) return Lose(status);
  if (world_size_ == 1) return absl::OkStatus();
  GlooTransfer* transfer = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    // Waits come in the order of starts.
    transfer = transfers_.front().get();
  }
  absl::Status status = transfer->Wait(timeout_);
  if (!status.ok()) return Lose(status);
  absl::MutexLock lock(&mutex_);
  transfers_.erase(transfers_.begin());
  return absl::OkStatus();
}

void GlooCommunicator::Abort() {
  Lose(absl::UnavailableError(
           absl::StrCat("rank ", rank_, " aborted the group")))
      .IgnoreError();
}

absl::Status GlooCommunicator::Lose(const absl::Status& why) {
  absl::Status first;
  {
    absl::MutexLock lock(&mutex_);
    if (lost_.ok()) lost_ = why;
    first = lost_;
    for (const std::unique_ptr<GlooTransfer>& transfer : transfers_) {
      transfer->Wake();
    }
    if (ballot_ != nullptr) ballot_->Wake();
  }
  // Every thread that returns an error has closed the connections first: the
  // caller's memory is its own again.
  if (mesh_ != nullptr) mesh_->Close();
  return first;
}

absl::Status GlooCommunicator::lost() const {
  absl::MutexLock lock(&mutex_);
  return lost_;
}

}  // namespace ithaca
