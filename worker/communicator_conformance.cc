#include "worker/communicator_conformance.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

constexpr int kWorldSizes[] = {1, 2, 3, 4, 7};

// Bytes of segment `k` from `sender` to `receiver`: uneven, some zero.
int64_t SegmentBytes(int exchange, int sender, int receiver, int k) {
  return int64_t{100} *
         ((sender * 31 + receiver * 7 + k * 13 + exchange * 5) % 6);
}

// A misrouted, shifted or stale byte cannot equal the right one.
uint8_t ByteAt(int exchange, int sender, int receiver, int k, int64_t index) {
  return static_cast<uint8_t>(exchange * 101 + sender * 59 + receiver * 17 +
                              k * 7 + index * 3 + 1);
}

// One rank's side of one exchange: its buffers and segments.
class Exchange {
 public:
  Exchange(int number, const Communicator& communicator, int segments,
           int64_t scale = 1)
      : number_(number), rank_(communicator.rank()), scale_(scale) {
    for (int peer = 0; peer < communicator.world_size(); ++peer) {
      if (peer == rank_) continue;
      for (int k = 0; k < segments; ++k) {
        AddSegments(peer, k);
      }
    }
  }

  const std::vector<SendSegment>& sends() const { return sends_; }
  const std::vector<RecvSegment>& recvs() const { return recvs_; }

  // Received bytes that are not what their sender meant for this rank.
  int64_t WrongBytes() const {
    int64_t wrong = 0;
    for (const Received& received : received_) {
      const std::vector<uint8_t>& bytes = *received.bytes;
      for (size_t i = 0; i < bytes.size(); ++i) {
        wrong += bytes[i] !=
                 ByteAt(number_, received.peer, rank_, received.k, int64_t(i));
      }
    }
    return wrong;
  }

 private:
  struct Received {
    int peer = 0;
    int k = 0;
    std::unique_ptr<std::vector<uint8_t>> bytes;
  };

  void AddSegments(int peer, int k) {
    auto out = std::make_unique<std::vector<uint8_t>>(
        SegmentBytes(number_, rank_, peer, k) * scale_);
    for (size_t i = 0; i < out->size(); ++i) {
      (*out)[i] = ByteAt(number_, rank_, peer, k, int64_t(i));
    }
    sends_.push_back({peer, out->data(), int64_t(out->size())});
    sent_.push_back(std::move(out));
    auto in = std::make_unique<std::vector<uint8_t>>(
        SegmentBytes(number_, peer, rank_, k) * scale_);
    recvs_.push_back({peer, in->data(), int64_t(in->size())});
    received_.push_back({peer, k, std::move(in)});
  }

  const int number_;
  const int rank_;
  const int64_t scale_;
  std::vector<SendSegment> sends_;
  std::vector<RecvSegment> recvs_;
  std::vector<std::unique_ptr<std::vector<uint8_t>>> sent_;
  std::vector<Received> received_;
};

void RunExchange(Communicator& communicator, int number, int segments,
                 int64_t scale = 1) {
  Exchange exchange(number, communicator, segments, scale);
  absl::StatusOr<ExchangeId> id =
      communicator.StartExchange(exchange.sends(), exchange.recvs());
  ASSERT_TRUE(id.ok()) << id.status();
  const absl::Status waited = communicator.WaitExchange(*id);
  ASSERT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(exchange.WrongBytes(), 0) << "rank " << communicator.rank();
}

// An exchange in which the communicator's peers do not take part ends with
// kUnavailable, and says so well within the suite's 20 s limit.
void ExpectExchangeUnavailable(Communicator& communicator) {
  Exchange exchange(3, communicator, 2, 1000);
  absl::StatusOr<ExchangeId> id =
      communicator.StartExchange(exchange.sends(), exchange.recvs());
  const absl::Status status =
      id.ok() ? communicator.WaitExchange(*id) : id.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformanceTest);

void CommunicatorConformanceTest::OnEveryRank(
    std::vector<std::unique_ptr<Communicator>>& group,
    const std::function<void(Communicator& communicator)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(group.size());
  for (std::unique_ptr<Communicator>& communicator : group) {
    threads.emplace_back([&body, &communicator] { body(*communicator); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(CommunicatorConformanceTest, KnowsItsRanks) {
  for (int world_size : kWorldSizes) {
    auto group = GetParam().make(world_size);
    ASSERT_EQ(group.size(), size_t(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      EXPECT_EQ(group[rank]->rank(), rank);
      EXPECT_EQ(group[rank]->world_size(), world_size);
      EXPECT_EQ(group[rank]->num_exchanges(), 0);
    }
  }
}

TEST_P(CommunicatorConformanceTest, ExchangesUnevenAndEmptySegments) {
  for (int world_size : kWorldSizes) {
    SCOPED_TRACE(world_size);
    auto group = GetParam().make(world_size);
    OnEveryRank(group, [](Communicator& communicator) {
      for (int number = 0; number < 8; ++number) {
        RunExchange(communicator, number, number % 4);
      }
      EXPECT_EQ(communicator.num_exchanges(), 8);
    });
  }
}

TEST_P(CommunicatorConformanceTest, ExchangesLargeSegments) {
  auto group = GetParam().make(3);
  OnEveryRank(group, [](Communicator& communicator) {
    RunExchange(communicator, 1, 2, 10000);
    RunExchange(communicator, 2, 1);
    RunExchange(communicator, 3, 3, 5000);
  });
}

TEST_P(CommunicatorConformanceTest, KeepsSeveralExchangesInFlight) {
  for (int world_size : kWorldSizes) {
    SCOPED_TRACE(world_size);
    auto group = GetParam().make(world_size);
    OnEveryRank(group, [](Communicator& communicator) {
      std::vector<std::unique_ptr<Exchange>> exchanges;
      std::vector<ExchangeId> ids;
      for (int number = 0; number < 5; ++number) {
        // Small ones and large ones in turn.
        exchanges.push_back(std::make_unique<Exchange>(
            number, communicator, 1 + number % 3, number % 2 ? 500 : 1));
        absl::StatusOr<ExchangeId> id = communicator.StartExchange(
            exchanges.back()->sends(), exchanges.back()->recvs());
        ASSERT_TRUE(id.ok()) << id.status();
        ids.push_back(*id);
      }
      for (size_t i = 0; i < ids.size(); ++i) {
        const absl::Status waited = communicator.WaitExchange(ids[i]);
        ASSERT_TRUE(waited.ok()) << waited;
        EXPECT_EQ(exchanges[i]->WrongBytes(), 0);
      }
    });
  }
}

TEST_P(CommunicatorConformanceTest, EqualVotesAgree) {
  for (int world_size : kWorldSizes) {
    auto group = GetParam().make(world_size);
    OnEveryRank(group, [](Communicator& communicator) {
      for (uint64_t call = 1; call <= 20; ++call) {
        const absl::Status status = communicator.Agree({call, 1000 + call});
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(communicator.num_exchanges(), 0);
    });
  }
}

TEST_P(CommunicatorConformanceTest, AFailingRankLeavesTheGroupIntact) {
  for (int world_size : kWorldSizes) {
    SCOPED_TRACE(world_size);
    auto group = GetParam().make(world_size);
    OnEveryRank(group, [world_size](Communicator& communicator) {
      CallVote vote{1, 5};
      if (communicator.rank() == world_size - 1) {
        vote.code = absl::StatusCode::kResourceExhausted;
      }
      EXPECT_EQ(communicator.Agree(vote).code(),
                absl::StatusCode::kResourceExhausted);
      vote = {2, 6, absl::StatusCode::kOk};
      if (communicator.rank() == 0) {
        vote.code = absl::StatusCode::kUnimplemented;
      }
      EXPECT_EQ(communicator.Agree(vote).code(),
                absl::StatusCode::kUnimplemented);
      EXPECT_TRUE(communicator.Agree({3, 7}).ok());
      RunExchange(communicator, 4, 2);
    });
  }
}

TEST_P(CommunicatorConformanceTest, DifferentPlansOrCallsAreInternal) {
  for (int world_size : {2, 3, 4}) {
    for (bool plans : {true, false}) {
      auto group = GetParam().make(world_size);
      OnEveryRank(group, [plans](Communicator& communicator) {
        const uint64_t odd = communicator.rank() == 1;
        const CallVote vote =
            plans ? CallVote{1, 10 + odd} : CallVote{1 + odd, 10};
        EXPECT_EQ(communicator.Agree(vote).code(), absl::StatusCode::kInternal);
      });
    }
  }
}

TEST_P(CommunicatorConformanceTest, AbortWakesAWaitingExchange) {
  auto group = GetParam().make(3);
  std::thread aborter([&group] {
    absl::SleepFor(absl::Milliseconds(100));
    group[0]->Abort();
  });
  const absl::Time start = absl::Now();
  ExpectExchangeUnavailable(*group[0]);
  aborter.join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  // Later calls end at once, and a second abort does nothing.
  ExpectExchangeUnavailable(*group[0]);
  EXPECT_EQ(group[0]->Agree({1, 1}).code(), absl::StatusCode::kUnavailable);
  group[0]->Abort();
}

TEST_P(CommunicatorConformanceTest, AbortWakesAWaitingVote) {
  auto group = GetParam().make(2);
  std::thread aborter([&group] {
    absl::SleepFor(absl::Milliseconds(100));
    group[1]->Abort();
  });
  EXPECT_EQ(group[1]->Agree({1, 1}).code(), absl::StatusCode::kUnavailable);
  aborter.join();
}

TEST_P(CommunicatorConformanceTest, PeersSeeAnAbortAtOnce) {
  auto group = GetParam().make(4);
  const absl::Time start = absl::Now();
  OnEveryRank(group, [](Communicator& communicator) {
    if (communicator.rank() == 2) {
      absl::SleepFor(absl::Milliseconds(100));
      communicator.Abort();
      return;
    }
    ExpectExchangeUnavailable(communicator);
  });
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_P(CommunicatorConformanceTest, ARankThatNeverComesEndsTheWait) {
  auto group = GetParam().make(2);
  // Rank 1 stays connected and silent: only the time limit can find it.
  EXPECT_EQ(group[0]->Agree({1, 1}).code(), absl::StatusCode::kUnavailable);
}

}  // namespace ithaca
