// What an exchange and a vote cost, between ranks of one host: fixed costs at
// small sizes, bytes a second and rank at large ones.
//
//   bazel run //worker:communicator_benchmark

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "worker/communicator.h"
#include "worker/file_rendezvous_store.h"
#include "worker/gloo_communicator.h"
#include "worker/in_process_communicator.h"

namespace ithaca {
namespace {

using Group = std::vector<std::unique_ptr<Communicator>>;

Group MakeInProcess(int world_size) {
  InProcessGroup group(world_size);
  Group communicators;
  for (int rank = 0; rank < world_size; ++rank) {
    communicators.push_back(group.MakeCommunicator(rank));
  }
  return communicators;
}

Group MakeGloo(int world_size) {
  FileRendezvousStore store = FileRendezvousStore::Fresh();
  Group group(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  threads.reserve(group.size());
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&store, &group, rank, world_size] {
      auto formed = GlooCommunicator::Form(store, rank, world_size);
      if (!formed.ok()) std::abort();
      group[static_cast<size_t>(rank)] = *std::move(formed);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return group;
}

// Seconds a round, of many, that every rank runs on its own thread.
template <typename Round>
double SecondsPerRound(const Group& group, int rounds, const Round& round) {
  const absl::Time start = absl::Now();
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Communicator>& communicator : group) {
    threads.emplace_back([&, rank = communicator.get()] {
      for (int i = 0; i < rounds; ++i) round(*rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return absl::ToDoubleSeconds(absl::Now() - start) / rounds;
}

void Exchanges(benchmark::State& state, Group (*make)(int)) {
  const int world_size = static_cast<int>(state.range(0));
  const int64_t bytes = state.range(1);
  const Group group = make(world_size);
  const std::vector<char> source(static_cast<size_t>(bytes), 1);
  std::vector<std::vector<char>> targets(
      static_cast<size_t>(world_size),
      std::vector<char>(static_cast<size_t>(bytes * world_size)));
  for (auto _ : state) {
    state.SetIterationTime(
        SecondsPerRound(group, 20, [&](Communicator& communicator) {
          std::vector<SendSegment> sends;
          std::vector<RecvSegment> recvs;
          char* target =
              targets[static_cast<size_t>(communicator.rank())].data();
          for (int peer = 0; peer < world_size; ++peer) {
            if (peer == communicator.rank()) continue;
            sends.push_back({peer, source.data(), bytes});
            recvs.push_back({peer, target + peer * bytes, bytes});
          }
          auto id = communicator.StartExchange(sends, recvs);
          if (!id.ok() || !communicator.WaitExchange(*id).ok()) std::abort();
        }));
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * bytes *
                          (world_size - 1));
}

void Votes(benchmark::State& state, Group (*make)(int)) {
  const Group group = make(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    state.SetIterationTime(
        SecondsPerRound(group, 100, [](Communicator& communicator) {
          if (!communicator.Agree({1, 1}).ok()) std::abort();
        }));
  }
}

void Sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"ranks", "bytes"})
      ->ArgsProduct({{2, 4}, {1 << 10, 256 << 10, 8 << 20}})
      ->UseManualTime()
      ->Iterations(10)
      ->Unit(benchmark::kMicrosecond);
}

void Ranks(benchmark::internal::Benchmark* b) {
  b->ArgName("ranks")->Arg(2)->Arg(4)->UseManualTime()->Iterations(10)->Unit(
      benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(Exchanges, in_process, MakeInProcess)->Apply(Sizes);
BENCHMARK_CAPTURE(Exchanges, gloo, MakeGloo)->Apply(Sizes);
BENCHMARK_CAPTURE(Votes, in_process, MakeInProcess)->Apply(Ranks);
BENCHMARK_CAPTURE(Votes, gloo, MakeGloo)->Apply(Ranks);

}  // namespace
}  // namespace ithaca

BENCHMARK_MAIN();
