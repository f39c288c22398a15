#include "worker/gloo_communicator.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "worker/communicator_conformance.h"
#include "worker/file_rendezvous_store.h"

namespace ithaca {
namespace {

GlooOptions Options(absl::Duration collective_timeout) {
  GlooOptions options;
  options.formation_timeout = absl::Seconds(20);
  options.collective_timeout = collective_timeout;
  return options;
}

std::vector<std::unique_ptr<Communicator>> MakeGroup(int world_size) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  std::vector<std::unique_ptr<Communicator>> group(world_size);
  std::vector<std::thread> threads;
  threads.reserve(group.size());
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      auto formed = GlooCommunicator::Form(store, rank, world_size,
                                           Options(absl::Seconds(3)));
      ASSERT_TRUE(formed.ok()) << formed.status();
      group[rank] = *std::move(formed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}

INSTANTIATE_TEST_SUITE_P(Gloo, CommunicatorConformanceTest,
                         testing::Values(CommunicatorFactory{"gloo",
                                                             MakeGroup}));

TEST(GlooCommunicatorTest, FormationWithoutARankIsBounded) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  GlooOptions options;
  options.formation_timeout = absl::Milliseconds(300);
  const absl::Time start = absl::Now();
  const absl::Status status =
      GlooCommunicator::Form(store, 0, 2, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(GlooCommunicatorTest, ARankThatPublishesAndNeverConnectsIsBounded) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  GlooOptions options;
  options.formation_timeout = absl::Milliseconds(500);
  // Rank 1 leaves its address and is gone: rank 0 is refused or waits.
  std::thread quitter([&store] {
    GlooOptions impatient;
    impatient.formation_timeout = absl::Milliseconds(1);
    EXPECT_FALSE(GlooCommunicator::Form(store, 1, 2, impatient).ok());
  });
  quitter.join();
  const absl::Time start = absl::Now();
  const absl::Status status =
      GlooCommunicator::Form(store, 0, 2, options).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status))
      << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST(GlooCommunicatorTest, RefusesAnAddressThatDoesNotResolve) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  GlooOptions options;
  options.address.hostname = "no-such-host.invalid";
  EXPECT_EQ(GlooCommunicator::Form(store, 0, 2, options).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.address.interface = "no-such-interface";
  EXPECT_EQ(GlooCommunicator::Form(store, 0, 2, options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GlooCommunicatorTest, FormsOverANamedInterface) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  GlooOptions options = Options(absl::Seconds(5));
  options.address.interface = "lo";
  std::thread peer([&store, &options] {
    auto formed = GlooCommunicator::Form(store, 1, 2, options);
    ASSERT_TRUE(formed.ok()) << formed.status();
    EXPECT_TRUE((*formed)->Agree({1, 1}).ok());
  });
  auto formed = GlooCommunicator::Form(store, 0, 2, options);
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_TRUE((*formed)->Agree({1, 1}).ok());
  peer.join();
}

TEST(GlooCommunicatorTest, AGroupOfOneNeedsNoNetwork) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  GlooOptions options;
  options.address.hostname = "no-such-host.invalid";
  auto formed = GlooCommunicator::Form(store, 0, 1, options);
  ASSERT_TRUE(formed.ok()) << formed.status();
  EXPECT_TRUE((*formed)->Agree({1, 1}).ok());
  absl::StatusOr<ExchangeId> id = (*formed)->StartExchange({}, {});
  ASSERT_TRUE(id.ok());
  EXPECT_TRUE((*formed)->WaitExchange(*id).ok());
  (*formed)->Abort();
  EXPECT_FALSE((*formed)->Agree({2, 2}).ok());
}

TEST(GlooCommunicatorTest, APeerThatLeavesIsSeenWhileIdle) {
  auto group = MakeGroup(3);
  group[1].reset();
  // No call is made until the loss is known: the next one fails at once.
  absl::SleepFor(absl::Milliseconds(200));
  const absl::Time start = absl::Now();
  EXPECT_EQ(group[0]->Agree({1, 1}).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(group[2]->StartExchange({}, {}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST(GlooCommunicatorTest, GroupsOfOneProcessAreIndependent) {
  auto first = MakeGroup(2);
  auto second = MakeGroup(2);
  first[0]->Abort();
  std::thread peer([&] { EXPECT_TRUE(second[1]->Agree({1, 1}).ok()); });
  EXPECT_TRUE(second[0]->Agree({1, 1}).ok());
  peer.join();
}

// --------------------------------------------------- ranks that are processes

constexpr char kFolderVariable[] = "ITHACA_GLOO_TEST_FOLDER";
constexpr char kFaultVariable[] = "ITHACA_GLOO_TEST_FAULT";
constexpr int64_t kLargeBytes = 256 << 20;

// Rank 1 of a group of two as a process of its own, which meets `fault`.
class PeerProcess {
 public:
  PeerProcess(const FileRendezvousStore& store, const char* fault) {
    setenv(kFolderVariable, store.folder().c_str(), 1);
    setenv(kFaultVariable, fault, 1);
    pid_ = fork();
    if (pid_ == 0) {
      execl("/proc/self/exe", "peer",
            "--gtest_filter=GlooPeerProcess.DISABLED_Run",
            "--gtest_also_run_disabled_tests", nullptr);
      _exit(127);
    }
  }

  ~PeerProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

TEST(GlooPeerProcess, DISABLED_Run) {
  const char* folder = std::getenv(kFolderVariable);
  ASSERT_NE(folder, nullptr);
  FileRendezvousStore store(folder);
  auto formed = GlooCommunicator::Form(store, 1, 2, Options(absl::Seconds(60)));
  ASSERT_TRUE(formed.ok()) << formed.status();
  ASSERT_TRUE((*formed)->Agree({1, 1}).ok());
  const std::string fault = std::getenv(kFaultVariable);
  if (fault == "die") raise(SIGKILL);
  if (fault == "freeze") raise(SIGSTOP);
  // "die in exchange": with megabytes of it under way.
  std::vector<char> data(kLargeBytes);
  const SendSegment send{0, data.data(), kLargeBytes};
  ASSERT_TRUE((*formed)->StartExchange({&send, 1}, {}).ok());
  absl::SleepFor(absl::Milliseconds(20));
  raise(SIGKILL);
}

// What rank 0 sees of an exchange with a peer that meets `fault`.
absl::Status ExchangeWithFaultyPeer(const char* fault,
                                    absl::Duration collective_timeout) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  PeerProcess peer(store, fault);
  auto formed =
      GlooCommunicator::Form(store, 0, 2, Options(collective_timeout));
  if (!formed.ok()) return absl::InternalError(formed.status().message());
  absl::Status agreed = (*formed)->Agree({1, 1});
  if (!agreed.ok()) return agreed;
  std::vector<char> data(kLargeBytes);
  const RecvSegment recv{1, data.data(), kLargeBytes};
  absl::StatusOr<ExchangeId> id = (*formed)->StartExchange({}, {&recv, 1});
  if (!id.ok()) return id.status();
  return (*formed)->WaitExchange(*id);
}

TEST(GlooCommunicatorTest, AKilledPeerIsSeenAtOnce) {
  for (const char* fault : {"die", "die in exchange"}) {
    const absl::Time start = absl::Now();
    const absl::Status status =
        ExchangeWithFaultyPeer(fault, absl::Seconds(60));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(20)) << fault;
  }
}

TEST(GlooCommunicatorTest, AFrozenPeerIsSeenAtTheCollectiveTimeout) {
  const absl::Status status =
      ExchangeWithFaultyPeer("freeze", absl::Milliseconds(500));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

}  // namespace
}  // namespace ithaca
