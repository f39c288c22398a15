// How fast ranks of one host exchange, a process and a GPU each: every rank
// sends every other an equal part of its buffer, as all-to-all does.
//
//   exchange_benchmark [--results=FILE] [--world-sizes=2,4,8] [--largest=BYTES]
//
// For a buffer of N bytes a rank in P parts, of which a rank keeps its own:
// algorithm bandwidth N / t, bus bandwidth (P - 1) / P of that, which is what a
// rank sends. t is the slowest rank's, exchanges one after the other. "alone"
// is one exchange as the host sees it: from the start until the GPU is idle.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/bench/rank_group.h"
#include "worker/communicator.h"
#include "worker/nccl_test_ranks.h"

namespace ithaca::bench {
namespace {

constexpr int64_t kSmallest = int64_t{64} << 10;
constexpr int64_t kLargest = int64_t{512} << 20;
// What ranks that share a GPU can move in sensible time.
constexpr int64_t kLargestShared = int64_t{16} << 20;

struct Flags {
  std::vector<int> world_sizes;
  std::string results;
  int64_t largest = 0;  // 0: as above
  double seconds = 60;  // a group
};

class ExchangeBenchmark {
 public:
  ExchangeBenchmark(RankGroup& group, const Flags& flags)
      : group_(group),
        results_(group, flags.results),
        largest_(flags.largest > 0
                     ? flags.largest
                     : (group.shares_gpus() ? kLargestShared : kLargest)),
        send_(Must(group.device().Allocate(largest_))),
        recv_(Must(group.device().Allocate(largest_))) {
    Must(group.device().Zero(send_, largest_));
  }
  ~ExchangeBenchmark() {
    group_.device().Free(send_);
    group_.device().Free(recv_);
  }

  void Run() {
    for (int64_t bytes = kSmallest; bytes <= largest_; bytes *= 2) {
      Measure(bytes);
    }
  }

 private:
  void Measure(int64_t bytes) {
    const int world_size = group_.world_size();
    const int64_t part = bytes / world_size / 256 * 256;
    sends_.clear();
    recvs_.clear();
    for (int peer = 0; peer < world_size; ++peer) {
      if (peer == group_.rank()) continue;
      sends_.push_back({peer, static_cast<char*>(send_) + peer * part, part});
      recvs_.push_back({peer, static_cast<char*>(recv_) + peer * part, part});
    }
    int64_t repeats = std::clamp<int64_t>((int64_t{1} << 32) / bytes, 8, 200);
    if (group_.shares_gpus()) repeats = 4;
    const double in_a_row = group_.Largest({InARow(repeats)})[0];
    const double alone = Alone(std::min<int64_t>(repeats, 30));
    const double algorithm = static_cast<double>(part * world_size) / in_a_row;
    const double bus = algorithm * (world_size - 1) / world_size;
    const std::string size = bytes >= (1 << 20)
                                 ? absl::StrCat(bytes >> 20, "MiB")
                                 : absl::StrCat(bytes >> 10, "KiB");
    const std::string of = absl::StrCat("/P", world_size, "/", size);
    results_.Add("M2/exchange" + of, bus / 1e9, "GB/s",
                 absl::StrFormat("bus; algorithm %.1f GB/s; %.1f us in a row",
                                 algorithm / 1e9, 1e6 * in_a_row));
    results_.Add("alone/exchange" + of, 1e6 * alone, "us", "median");
  }

  void Exchange() {
    Communicator& communicator = group_.communicator();
    Must(communicator.WaitExchange(
        Must(communicator.StartExchange(sends_, recvs_))));
  }

  // Seconds of one, of this rank.
  double InARow(int64_t repeats) {
    for (int i = 0; i < 3; ++i) Exchange();
    group_.Barrier();
    CudaDevice& device = group_.device();
    const DeviceMark begin = device.Mark();
    for (int64_t i = 0; i < repeats; ++i) Exchange();
    const DeviceMark end = device.Mark();
    Must(device.Synchronize());
    return device.SecondsBetween(begin, end) / static_cast<double>(repeats);
  }

  // The median over repeats of the slowest rank's.
  double Alone(int64_t repeats) {
    std::vector<double> seconds;
    for (int64_t i = 0; i < repeats; ++i) {
      group_.Barrier();
      const absl::Time begin = absl::Now();
      Exchange();
      Must(group_.device().Synchronize());
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    }
    seconds = group_.Largest(seconds);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  RankGroup& group_;
  Results results_;
  const int64_t largest_;
  void* const send_;
  void* const recv_;
  std::vector<SendSegment> sends_;
  std::vector<RecvSegment> recvs_;
};

}  // namespace
}  // namespace ithaca::bench

int main(int argc, char** argv) {
  using ithaca::bench::RankGroup;
  const auto role = ithaca::ParseRankRole(argc, argv);
  if (role.has_value()) --argc;
  ithaca::bench::Flags flags;
  CLI::App app("Measures exchanges between GPUs of this host.");
  app.add_option("--world-sizes", flags.world_sizes, "Ranks of each group")
      ->delimiter(',');
  app.add_option("--results", flags.results, "Add the numbers to this file");
  app.add_option("--largest", flags.largest, "Bytes of the largest buffer");
  app.add_option("--seconds", flags.seconds, "At most, each group");
  CLI11_PARSE(app, argc, argv);
  if (role.has_value()) {
    RankGroup group(*role);
    ithaca::bench::ExchangeBenchmark(group, flags).Run();
    group.Barrier();  // nobody leaves while others exchange with it
    return 0;
  }
  bool well = true;
  for (const int size : ithaca::bench::WorldSizes(flags.world_sizes)) {
    well &= ithaca::bench::RunGroup(
        "exchange", size, std::vector<std::string>(argv + 1, argv + argc),
        flags.seconds);
  }
  return well ? 0 : 1;
}
