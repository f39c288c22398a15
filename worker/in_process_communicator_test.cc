#include "worker/in_process_communicator.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "worker/communicator_conformance.h"

namespace ithaca {
namespace {

std::vector<std::unique_ptr<Communicator>> MakeGroup(int world_size) {
  InProcessGroup group(world_size, absl::Seconds(2));
  std::vector<std::unique_ptr<Communicator>> communicators;
  communicators.reserve(static_cast<size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    communicators.push_back(group.MakeCommunicator(rank));
  }
  return communicators;
}

INSTANTIATE_TEST_SUITE_P(InProcess, CommunicatorConformanceTest,
                         testing::Values(CommunicatorFactory{"in_process",
                                                             MakeGroup}));

TEST(InProcessCommunicatorTest, KillingARankFailsItsPeers) {
  InProcessGroup group(2);
  auto survivor = group.MakeCommunicator(0);
  std::thread killer([&group] {
    absl::SleepFor(absl::Milliseconds(50));
    group.KillRank(1);
  });
  const absl::Status status = survivor->Agree({1, 1});
  killer.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "rank 1 is gone");
}

TEST(InProcessCommunicatorTest, AnInjectedVoteFailsOneCallOnly) {
  InProcessGroup group(2);
  group.FailNextVote(1, absl::StatusCode::kResourceExhausted);
  std::vector<std::thread> ranks;
  ranks.reserve(2);
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&group, rank] {
      auto communicator = group.MakeCommunicator(rank);
      EXPECT_EQ(communicator->Agree({1, 1}).code(),
                absl::StatusCode::kResourceExhausted);
      EXPECT_TRUE(communicator->Agree({2, 2}).ok());
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(InProcessCommunicatorTest, ADelayedRankHoldsItsPeersUp) {
  InProcessGroup group(2);
  group.DelayExchanges(1, absl::Milliseconds(100));
  const char sent = 'x';
  char received = 0;
  auto first = group.MakeCommunicator(0);
  auto second = group.MakeCommunicator(1);
  std::thread sender([&] {
    const SendSegment segment{0, &sent, 1};
    auto id = second->StartExchange({&segment, 1}, {});
    ASSERT_TRUE(id.ok());
    EXPECT_TRUE(second->WaitExchange(*id).ok());
  });
  const absl::Time start = absl::Now();
  const RecvSegment segment{1, &received, 1};
  auto id = first->StartExchange({}, {&segment, 1});
  ASSERT_TRUE(id.ok());
  ASSERT_TRUE(first->WaitExchange(*id).ok());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
  EXPECT_EQ(received, 'x');
  sender.join();
}

TEST(InProcessCommunicatorTest, MismatchedSegmentsLoseTheGroup) {
  InProcessGroup group(2, absl::Seconds(5));
  auto first = group.MakeCommunicator(0);
  auto second = group.MakeCommunicator(1);
  char bytes[4] = {};
  const SendSegment send{0, bytes, 2};
  const RecvSegment recv{1, bytes + 2, 1};
  ASSERT_TRUE(second->StartExchange({&send, 1}, {}).ok());
  auto id = first->StartExchange({}, {&recv, 1});
  ASSERT_TRUE(id.ok());
  EXPECT_EQ(first->WaitExchange(*id).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ithaca
