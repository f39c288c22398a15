// A group of processes, one a rank, as NCCL wants them: the test starts itself
// again for each rank. Ranks that share a GPU get a host identity each.

#include "worker/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "worker/cuda_device.h"
#include "worker/file_rendezvous_store.h"
#include "worker/gloo_communicator.h"

extern char** environ;

namespace ithaca {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

// ------------------------------------------------------------ a rank's side

// What a rank found wrong, printed; the rank's exit status is 1 then.
#define RANK_CHECK(condition, ...)                                            \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
                   absl::StrCat(__VA_ARGS__).c_str());                        \
      return false;                                                           \
    }                                                                         \
  } while (false)

struct RankRole {
  std::string scenario;
  int rank = 0;
  int world_size = 0;
  std::string folder;

  int last() const { return world_size - 1; }
};

uint8_t ByteAt(int exchange, int sender, int receiver, int64_t index) {
  return static_cast<uint8_t>(exchange * 101 + sender * 59 + receiver * 17 +
                              index * 3 + index / 251 + 1);
}

// Uneven, and none at all between some pairs.
int64_t BytesBetween(int exchange, int sender, int receiver, int64_t scale) {
  return (sender * 31 + receiver * 7 + exchange * 5) % 6 * scale;
}

// A rank's buffers of one exchange, in GPU memory.
class Exchange {
 public:
  Exchange(CudaDevice* device, const Communicator& communicator, int number,
           int64_t scale)
      : device_(device), number_(number), rank_(communicator.rank()) {
    for (int peer = 0; peer < communicator.world_size(); ++peer) {
      if (peer == rank_) continue;
      const int64_t out = BytesBetween(number, rank_, peer, scale);
      const int64_t in = BytesBetween(number, peer, rank_, scale);
      std::vector<uint8_t> bytes(static_cast<size_t>(out));
      for (int64_t i = 0; i < out; ++i) {
        bytes[static_cast<size_t>(i)] = ByteAt(number, rank_, peer, i);
      }
      void* const from = device->Allocate(out).value();
      memory_.push_back(from);
      ok_ = ok_ && device->CopyFromHost(from, bytes.data(), out).ok();
      sends_.push_back({peer, from, out});
      void* const to = device->Allocate(in).value();
      memory_.push_back(to);
      ok_ = ok_ && device->Zero(to, in).ok();
      recvs_.push_back({peer, to, in});
    }
  }
  ~Exchange() {
    for (void* memory : memory_) device_->Free(memory);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  absl::StatusOr<ExchangeId> Start(Communicator& communicator) const {
    return communicator.StartExchange(sends_, recvs_);
  }

  int64_t WrongBytes() const {
    int64_t wrong = ok_ ? 0 : 1;
    for (const RecvSegment& recv : recvs_) {
      std::vector<uint8_t> bytes(static_cast<size_t>(recv.bytes));
      if (!device_->CopyToHost(bytes.data(), recv.data, recv.bytes).ok()) {
        ++wrong;
      }
      for (int64_t i = 0; i < recv.bytes; ++i) {
        wrong += bytes[static_cast<size_t>(i)] !=
                 ByteAt(number_, recv.peer, rank_, i);
      }
    }
    return wrong;
  }

 private:
  CudaDevice* const device_;
  const int number_;
  const int rank_;
  bool ok_ = true;
  std::vector<void*> memory_;
  std::vector<SendSegment> sends_;
  std::vector<RecvSegment> recvs_;
};

bool RunExchange(CudaDevice* device, Communicator& communicator, int number,
                 int64_t scale) {
  const Exchange exchange(device, communicator, number, scale);
  const auto id = exchange.Start(communicator);
  RANK_CHECK(id.ok(), id.status().ToString());
  const absl::Status waited = communicator.WaitExchange(*id);
  RANK_CHECK(waited.ok(), waited.ToString());
  const absl::Status done = device->Synchronize();
  RANK_CHECK(done.ok(), done.ToString());
  const int64_t wrong = exchange.WrongBytes();
  RANK_CHECK(wrong == 0, wrong, " wrong bytes on rank ", communicator.rank(),
             " in exchange ", number);
  return true;
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(
    CudaDevice* device, const std::string& folder, int rank, int world_size,
    absl::Duration exchange_timeout, absl::Duration patience = kPatience) {
  FileRendezvousStore store(folder);
  GlooOptions options;
  options.formation_timeout = patience;
  auto host_channel = GlooCommunicator::Form(store, rank, world_size, options);
  if (!host_channel.ok()) return host_channel.status();
  return NcclCommunicator::Connect(device, store, *std::move(host_channel),
                                   absl::Now() + patience, exchange_timeout);
}

bool Exchanges(const RankRole& role, CudaDevice* device) {
  auto communicator = Connect(device, role.folder, role.rank, role.world_size,
                              /*exchange_timeout=*/kPatience);
  RANK_CHECK(communicator.ok(), communicator.status().ToString());
  Communicator& group = **communicator;
  RANK_CHECK(group.rank() == role.rank && group.num_exchanges() == 0, "");
  for (int number = 0; number < 6; ++number) {
    RANK_CHECK(group.Agree({static_cast<uint64_t>(number + 1), 5}).ok(), "");
    if (!RunExchange(device, group, number, number % 2 == 0 ? 100 : 77777)) {
      return false;
    }
  }
  // An exchange of nothing, and several in flight.
  const auto nothing = group.StartExchange({}, {});
  RANK_CHECK(nothing.ok() && group.WaitExchange(*nothing).ok(), "");
  std::vector<std::unique_ptr<Exchange>> exchanges;
  std::vector<ExchangeId> ids;
  for (int number = 10; number < 15; ++number) {
    exchanges.push_back(std::make_unique<Exchange>(
        device, group, number, number % 2 == 0 ? 10 : 50001));
    ids.push_back(exchanges.back()->Start(group).value());
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    RANK_CHECK(group.WaitExchange(ids[i]).ok(), "");
    RANK_CHECK(exchanges[i]->WrongBytes() == 0, "exchange ", i);
  }
  RANK_CHECK(group.num_exchanges() == 12, group.num_exchanges());
  // Nobody leaves while another still exchanges with it.
  RANK_CHECK(group.Agree({100, 5}).ok(), "");
  return true;
}

// The last rank dies; the others see it, abort and form a group of their own.
bool LosesARank(const RankRole& role, CudaDevice* device, int signal,
                absl::Duration exchange_timeout) {
  {
    auto communicator = Connect(device, role.folder, role.rank, role.world_size,
                                exchange_timeout);
    RANK_CHECK(communicator.ok(), communicator.status().ToString());
    Communicator& group = **communicator;
    if (!RunExchange(device, group, 1, 1000)) return false;
    RANK_CHECK(group.Agree({1, 1}).ok(), "");
    if (role.rank == role.last()) {
      raise(signal);
      return true;
    }
    // The 7th: every rank has something to say to, and hear from, the last.
    const Exchange exchange(device, group, 7, 100000);
    const absl::Time start = absl::Now();
    const auto id = exchange.Start(group);
    absl::Status status = id.status();
    if (status.ok()) status = group.WaitExchange(*id);
    if (status.ok()) status = device->Synchronize();
    RANK_CHECK(absl::IsUnavailable(status), status.ToString());
    const absl::Duration seen = absl::Now() - start;
    RANK_CHECK(seen < exchange_timeout + absl::Seconds(5),
               absl::FormatDuration(seen));
    const absl::Time aborting = absl::Now();
    group.Abort();
    const absl::Duration took = absl::Now() - aborting;
    RANK_CHECK(took < absl::Seconds(5), absl::FormatDuration(took));
    RANK_CHECK(absl::IsUnavailable(exchange.Start(group).status()), "");
    std::fprintf(stderr, "rank %d: seen after %s, aborted in %s\n", role.rank,
                 absl::FormatDuration(seen).c_str(),
                 absl::FormatDuration(took).c_str());
    // The device is whole again.
    const absl::Status whole = device->Synchronize();
    RANK_CHECK(absl::IsUnavailable(whole) || whole.ok(), whole.ToString());
  }
  RANK_CHECK(device->Synchronize().ok(), "");
  auto survivors = Connect(device, role.folder + "/survivors", role.rank,
                           role.world_size - 1, kPatience);
  RANK_CHECK(survivors.ok(), survivors.status().ToString());
  if (!RunExchange(device, **survivors, 3, 5000)) return false;
  RANK_CHECK((*survivors)->Agree({2, 2}).ok(), "");
  return true;
}

// Votes can be cast, but rank 1 never comes to NCCL.
bool MissesARank(const RankRole& role, CudaDevice* device) {
  FileRendezvousStore store(role.folder);
  auto host_channel = GlooCommunicator::Form(store, role.rank, role.world_size);
  RANK_CHECK(host_channel.ok(), host_channel.status().ToString());
  if (role.rank == 1) {
    absl::SleepFor(absl::Seconds(6));
    return true;
  }
  const absl::Time start = absl::Now();
  const auto communicator = NcclCommunicator::Connect(
      device, store, *std::move(host_channel), absl::Now() + absl::Seconds(3),
      absl::Seconds(3));
  RANK_CHECK(absl::IsDeadlineExceeded(communicator.status()),
             communicator.status().ToString());
  RANK_CHECK(absl::Now() - start < absl::Seconds(10), "");
  return true;
}

// An abort from another thread ends the wait of the one that runs calls.
bool IsAborted(const RankRole& role, CudaDevice* device) {
  auto communicator =
      Connect(device, role.folder, role.rank, role.world_size, kPatience);
  RANK_CHECK(communicator.ok(), communicator.status().ToString());
  Communicator& group = **communicator;
  if (role.rank != 0) {
    // Silent, so that only the abort ends rank 0's exchange.
    absl::SleepFor(absl::Seconds(4));
    return true;
  }
  std::thread aborter([&group] {
    absl::SleepFor(absl::Milliseconds(500));
    group.Abort();
  });
  const Exchange exchange(device, group, 2, 100000);
  const absl::Time start = absl::Now();
  const auto id = exchange.Start(group);
  absl::Status status = id.status();
  if (status.ok()) status = group.WaitExchange(*id);
  if (status.ok()) status = device->Synchronize();
  const absl::Duration took = absl::Now() - start;
  aborter.join();
  RANK_CHECK(absl::IsUnavailable(status), status.ToString());
  RANK_CHECK(took < absl::Seconds(6), absl::FormatDuration(took));
  group.Abort();
  return true;
}

bool RunRank(const RankRole& role) {
  int gpus = 0;
  RANK_CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && gpus > 0, "no GPU");
  if (gpus < role.world_size) {
    setenv("NCCL_HOSTID", absl::StrCat("rank-", role.rank).c_str(), 1);
  }
  auto device = CudaDevice::Open(role.rank % gpus);
  RANK_CHECK(device.ok(), device.status().ToString());
  const std::map<std::string, std::function<bool()>> scenarios = {
      {"exchanges", [&] { return Exchanges(role, device->get()); }},
      {"killed",
       [&] { return LosesARank(role, device->get(), SIGKILL, kPatience); }},
      {"frozen",
       [&] {
         return LosesARank(role, device->get(), SIGSTOP, absl::Seconds(3));
       }},
      {"missing", [&] { return MissesARank(role, device->get()); }},
      {"aborted", [&] { return IsAborted(role, device->get()); }},
  };
  return scenarios.at(role.scenario)();
}

// ------------------------------------------------------------ the test's side

class Ranks {
 public:
  Ranks(const std::string& scenario, int world_size)
      : store_(FileRendezvousStore::Fresh()) {
    const std::string survivors = store_.folder() + "/survivors";
    EXPECT_EQ(mkdir(survivors.c_str(), 0700), 0);
    for (int rank = 0; rank < world_size; ++rank) {
      std::string role = absl::StrCat("--role=", scenario, ",", rank, ",",
                                      world_size, ",", store_.folder());
      std::string program = "/proc/self/exe";
      char* arguments[] = {program.data(), role.data(), nullptr};
      pid_t pid = 0;
      EXPECT_EQ(posix_spawn(&pid, program.c_str(), nullptr, nullptr, arguments,
                            environ),
                0);
      pids_.push_back(pid);
    }
  }
  ~Ranks() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
  }

  // Its exit status, or -1 for one that was killed or did not end in time.
  int Join(int rank) {
    const absl::Time deadline = absl::Now() + kPatience;
    int status = 0;
    while (absl::Now() < deadline) {
      if (waitpid(pids_[static_cast<size_t>(rank)], &status, WNOHANG) != 0) {
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    return -1;
  }

 private:
  const FileRendezvousStore store_;
  std::vector<pid_t> pids_;
};

class NcclCommunicatorTest : public testing::TestWithParam<int> {};

TEST_P(NcclCommunicatorTest, ExchangesAndVotes) {
  const int world_size = GetParam();
  Ranks ranks("exchanges", world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(ranks.Join(rank), 0) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, NcclCommunicatorTest,
                         testing::Values(1, 2, 3, 4));

TEST(NcclCommunicatorFaultTest, SurvivorsOfAKilledRankFormANewGroup) {
  Ranks ranks("killed", 4);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(ranks.Join(rank), 0) << "rank " << rank;
  }
}

TEST(NcclCommunicatorFaultTest, AFrozenRankIsFoundByTheTimeLimit) {
  Ranks ranks("frozen", 3);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.Join(rank), 0) << "rank " << rank;
  }
}

TEST(NcclCommunicatorFaultTest, ARankThatNeverComesEndsTheSetUp) {
  Ranks ranks("missing", 2);
  EXPECT_EQ(ranks.Join(0), 0);
}

TEST(NcclCommunicatorFaultTest, AnAbortEndsTheWaitOfAnotherThread) {
  Ranks ranks("aborted", 2);
  EXPECT_EQ(ranks.Join(0), 0);
}

TEST(NcclCommunicatorVersionTest, ThisOneIsNewEnough) {
  const absl::Status status = NcclCommunicator::CheckVersion();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace ithaca

int main(int argc, char** argv) {
  const std::string flag = "--role=";
  if (argc == 2 && std::string(argv[1]).rfind(flag, 0) == 0) {
    const std::vector<std::string> parts =
        absl::StrSplit(std::string(argv[1]).substr(flag.size()), ',');
    ithaca::RankRole role;
    role.scenario = parts.at(0);
    if (!absl::SimpleAtoi(parts.at(1), &role.rank) ||
        !absl::SimpleAtoi(parts.at(2), &role.world_size)) {
      return 2;
    }
    role.folder = parts.at(3);
    return ithaca::RunRank(role) ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
