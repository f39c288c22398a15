// A group of processes, one a rank, as NCCL wants them.

#include "worker/nccl_communicator.h"

#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "worker/cuda_device.h"
#include "worker/file_rendezvous_store.h"
#include "worker/gloo_communicator.h"
#include "worker/nccl_test_ranks.h"

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

uint8_t ByteAt(int exchange, int sender, int receiver, int64_t index) {
  return static_cast<uint8_t>(exchange * 101 + sender * 59 + receiver * 17 +
                              index * 3 + index / 251 + 1);
}

// In this exchange every rank has something to say to every other.
constexpr int kFullExchange = 7;

// Uneven, and none at all between some pairs.
int64_t BytesBetween(int exchange, int sender, int receiver, int64_t scale) {
  const int parts = (sender * 31 + receiver * 7 + exchange * 5) % 6;
  return (parts + (exchange == kFullExchange ? 1 : 0)) * scale;
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

bool Exchanges(const RankRole& role, CudaDevice* device) {
  auto communicator = ConnectRank(device, role.folder, role.rank,
                                  role.world_size, kPatience, kPatience);
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
    auto communicator =
        ConnectRank(device, role.folder, role.rank, role.world_size,
                    exchange_timeout, kPatience);
    RANK_CHECK(communicator.ok(), communicator.status().ToString());
    Communicator& group = **communicator;
    if (!RunExchange(device, group, 1, 1000)) return false;
    RANK_CHECK(group.Agree({1, 1}).ok(), "");
    if (role.rank == role.last()) {
      raise(signal);
      return true;
    }
    const Exchange exchange(device, group, kFullExchange, 100000);
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
  const std::string folder = role.folder + "/survivors";
  mkdir(folder.c_str(), 0700);  // whoever comes first
  auto survivors = ConnectRank(device, folder, role.rank, role.world_size - 1,
                               kPatience, kPatience);
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
  auto communicator = ConnectRank(device, role.folder, role.rank,
                                  role.world_size, kPatience, kPatience);
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
  auto device = OpenRankGpu(role);
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
  return scenarios.at(role.task)();
}

// ------------------------------------------------------------ the test's side

// Where there are eight GPUs, their whole group; else a few ranks on what there
// is.
int LargeGroup() { return NumGpus() >= 8 ? 8 : 4; }

std::vector<int> WorldSizes() {
  std::vector<int> sizes = {1, 2, 3, 4};
  if (LargeGroup() > 4) sizes.push_back(LargeGroup());
  return sizes;
}

class NcclCommunicatorTest : public testing::TestWithParam<int> {};

TEST_P(NcclCommunicatorTest, ExchangesAndVotes) {
  const int world_size = GetParam();
  RankProcesses ranks("exchanges", world_size);
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(ranks.Join(rank, kPatience), 0) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, NcclCommunicatorTest,
                         testing::ValuesIn(WorldSizes()));

TEST(NcclCommunicatorFaultTest, SurvivorsOfAKilledRankFormANewGroup) {
  const int world_size = LargeGroup();
  RankProcesses ranks("killed", world_size);
  for (int rank = 0; rank < world_size - 1; ++rank) {
    EXPECT_EQ(ranks.Join(rank, kPatience), 0) << "rank " << rank;
  }
}

TEST(NcclCommunicatorFaultTest, AFrozenRankIsFoundByTheTimeLimit) {
  const int world_size = LargeGroup() - 1;
  RankProcesses ranks("frozen", world_size);
  for (int rank = 0; rank < world_size - 1; ++rank) {
    EXPECT_EQ(ranks.Join(rank, kPatience), 0) << "rank " << rank;
  }
}

TEST(NcclCommunicatorFaultTest, ARankThatNeverComesEndsTheSetUp) {
  RankProcesses ranks("missing", 2);
  EXPECT_EQ(ranks.Join(0, kPatience), 0);
}

TEST(NcclCommunicatorFaultTest, AnAbortEndsTheWaitOfAnotherThread) {
  RankProcesses ranks("aborted", 2);
  EXPECT_EQ(ranks.Join(0, kPatience), 0);
}

TEST(NcclCommunicatorVersionTest, ThisOneIsNewEnough) {
  const absl::Status status = NcclCommunicator::CheckVersion();
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace ithaca

int main(int argc, char** argv) {
  if (const auto role = ithaca::ParseRankRole(argc, argv)) {
    return ithaca::RunRank(*role) ? 0 : 1;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
