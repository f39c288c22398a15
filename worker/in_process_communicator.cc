#include "worker/in_process_communicator.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "worker/call_refusal.h"
#include "worker/call_vote.h"

namespace ithaca {
namespace {

// What one rank gave to one exchange.
struct Posted {
  std::vector<SendSegment> sends;
  std::vector<RecvSegment> recvs;
  // Peers that have yet to copy what is sent to them.
  int unread_peers = 0;
};

std::vector<SendSegment> SegmentsTo(const Posted& posted, int peer) {
  std::vector<SendSegment> segments;
  for (const SendSegment& segment : posted.sends) {
    if (segment.peer == peer && segment.bytes > 0) segments.push_back(segment);
  }
  return segments;
}

std::vector<RecvSegment> SegmentsFrom(const Posted& posted, int peer) {
  std::vector<RecvSegment> segments;
  for (const RecvSegment& segment : posted.recvs) {
    if (segment.peer == peer && segment.bytes > 0) segments.push_back(segment);
  }
  return segments;
}

absl::Status CopyHostMemory(void* dst, const void* src, int64_t bytes) {
  std::memcpy(dst, src, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

}  // namespace

// What the ranks share. Bytes are copied under the lock: after an abort no
// thread still touches another rank's memory.
class InProcessGroup::State {
 public:
  State(int world_size, absl::Duration timeout, CopyMemory copy)
      : world_size_(world_size),
        timeout_(timeout),
        copy_(std::move(copy)),
        ranks_(world_size) {}

  int world_size() const { return world_size_; }

  void Lose(absl::Status why) {
    absl::MutexLock lock(&mutex_);
    if (lost_.ok()) lost_ = std::move(why);
  }

  void DelayExchanges(int rank, absl::Duration delay) {
    absl::MutexLock lock(&mutex_);
    ranks_[rank].delay = delay;
  }

  void FailNextVote(int rank, absl::StatusCode code) {
    absl::MutexLock lock(&mutex_);
    ranks_[rank].next_vote_code = code;
  }

  absl::Status Vote(int rank, CallVote vote) {
    absl::MutexLock lock(&mutex_);
    if (!lost_.ok()) return lost_;
    Rank& self = ranks_[rank];
    if (self.next_vote_code.has_value()) {
      vote.code = *self.next_vote_code;
      self.next_vote_code.reset();
    }
    const uint64_t number = self.votes_cast++;
    Round& round = rounds_[number];
    round.votes.resize(world_size_);
    round.votes[rank] = vote;
    ++round.arrived;
    absl::Status waited =
        Await("vote", [this, &round] { return round.arrived == world_size_; });
    // Once all have come, all count, even if the first to count has meanwhile
    // found the group lost.
    if (!waited.ok() && round.arrived < world_size_) return waited;
    absl::Status result = CountVotes(round.votes);
    if (++round.read == world_size_) rounds_.erase(number);
    if (!GroupSurvives(result) && lost_.ok()) {
      lost_ = absl::UnavailableError(result.message());
    }
    return result;
  }

  absl::Status Post(int rank, ExchangeId id, Posted posted) {
    absl::Duration delay;
    {
      absl::MutexLock lock(&mutex_);
      delay = ranks_[rank].delay;
    }
    absl::SleepFor(delay);
    for (int peer = 0; peer < world_size_; ++peer) {
      if (!SegmentsTo(posted, peer).empty()) ++posted.unread_peers;
    }
    absl::MutexLock lock(&mutex_);
    if (!lost_.ok()) return lost_;
    ranks_[rank].posted[id] = std::move(posted);
    return absl::OkStatus();
  }

  absl::Status Wait(int rank, ExchangeId id) {
    absl::MutexLock lock(&mutex_);
    if (!lost_.ok()) return lost_;
    Posted& own = ranks_[rank].posted[id];
    for (int peer = 0; peer < world_size_; ++peer) {
      const std::vector<RecvSegment> recvs = SegmentsFrom(own, peer);
      if (recvs.empty()) continue;
      std::map<ExchangeId, Posted>& theirs = ranks_[peer].posted;
      absl::Status waited =
          Await("exchange", [&theirs, id] { return theirs.contains(id); });
      if (!waited.ok()) return waited;
      absl::Status copied = Copy(SegmentsTo(theirs[id], rank), recvs);
      if (!copied.ok()) return copied;
      --theirs[id].unread_peers;
    }
    absl::Status waited =
        Await("exchange", [&own] { return own.unread_peers == 0; });
    if (!waited.ok()) return waited;
    ranks_[rank].posted.erase(id);
    return absl::OkStatus();
  }

 private:
  struct Rank {
    uint64_t votes_cast = 0;
    std::map<ExchangeId, Posted> posted;
    absl::Duration delay;
    absl::optional<absl::StatusCode> next_vote_code;
  };

  struct Round {
    std::vector<CallVote> votes;
    int arrived = 0;
    int read = 0;
  };

  template <typename Predicate>
  absl::Status Await(const char* what, const Predicate& ready)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto done = [this, &ready]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      return !lost_.ok() || ready();
    };
    const bool in_time =
        mutex_.AwaitWithTimeout(absl::Condition(&done), timeout_);
    if (lost_.ok() && !in_time) {
      lost_ = absl::UnavailableError(
          absl::StrCat("a rank did not come to the ", what, " within ",
                       absl::FormatDuration(timeout_)));
    }
    return lost_;
  }

  absl::Status Copy(const std::vector<SendSegment>& sends,
                    const std::vector<RecvSegment>& recvs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bool match = sends.size() == recvs.size();
    for (size_t i = 0; match && i < sends.size(); ++i) {
      match = sends[i].bytes == recvs[i].bytes;
      if (!match) break;
      const absl::Status copied =
          copy_(recvs[i].data, sends[i].data, sends[i].bytes);
      if (!copied.ok() && lost_.ok()) {
        lost_ = absl::UnavailableError(copied.message());
      }
    }
    if (!match && lost_.ok()) {
      lost_ = absl::UnavailableError("segments sent and received differ");
    }
    return lost_;
  }

  const int world_size_;
  const absl::Duration timeout_;
  const CopyMemory copy_;
  absl::Mutex mutex_;
  absl::Status lost_ ABSL_GUARDED_BY(mutex_);
  std::vector<Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Round> rounds_ ABSL_GUARDED_BY(mutex_);
};

class InProcessGroup::RankCommunicator : public Communicator {
 public:
  RankCommunicator(std::shared_ptr<State> state, int rank)
      : state_(std::move(state)), rank_(rank) {}

  int rank() const override { return rank_; }
  int world_size() const override { return state_->world_size(); }

  absl::Status Agree(const CallVote& vote) override {
    return state_->Vote(rank_, vote);
  }

  absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> sends,
      absl::Span<const RecvSegment> recvs) override {
    const ExchangeId id = num_exchanges_.fetch_add(1);
    Posted posted;
    posted.sends.assign(sends.begin(), sends.end());
    posted.recvs.assign(recvs.begin(), recvs.end());
    absl::Status status = state_->Post(rank_, id, std::move(posted));
    if (!status.ok()) return status;
    return id;
  }

  absl::Status WaitExchange(ExchangeId id) override {
    return state_->Wait(rank_, id);
  }

  void Abort() override {
    state_->Lose(absl::UnavailableError(
        absl::StrCat("rank ", rank_, " aborted the group")));
  }

  uint64_t num_exchanges() const override { return num_exchanges_.load(); }

 private:
  const std::shared_ptr<State> state_;
  const int rank_;
  std::atomic<uint64_t> num_exchanges_{0};
};

InProcessGroup::InProcessGroup(int world_size, absl::Duration timeout,
                               CopyMemory copy)
    : state_(std::make_shared<State>(
          world_size, timeout,
          copy != nullptr ? std::move(copy) : CopyHostMemory)) {}

int InProcessGroup::world_size() const { return state_->world_size(); }

std::unique_ptr<Communicator> InProcessGroup::MakeCommunicator(int rank) {
  return std::make_unique<RankCommunicator>(state_, rank);
}

void InProcessGroup::KillRank(int rank) {
  state_->Lose(absl::UnavailableError(absl::StrCat("rank ", rank, " is gone")));
}

void InProcessGroup::DelayExchanges(int rank, absl::Duration delay) {
  state_->DelayExchanges(rank, delay);
}

void InProcessGroup::FailNextVote(int rank, absl::StatusCode code) {
  state_->FailNextVote(rank, code);
}

}  // namespace ithaca
