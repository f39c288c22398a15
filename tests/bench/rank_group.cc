#include "tests/bench/rank_group.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace ithaca::bench {

namespace {

constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

RankGroup::RankGroup(const RankRole& role)
    : role_(role),
      shares_gpus_(NumGpus() < role.world_size),
      store_(role.folder),
      device_(Must(OpenRankGpu(role))),
      communicator_(Must(ConnectRank(device_.get(), role.folder, role.rank,
                                     role.world_size, kPatience, kPatience))) {}

void RankGroup::Barrier() {
  Must(device_->Synchronize());
  Must(communicator_->Agree({NextCallNumber(), 0}));
}

std::vector<std::vector<double>> RankGroup::Gather(
    const std::vector<double>& own) {
  const std::string round = absl::StrCat("gather/", ++gathered_, "/");
  Must(store_.Set(absl::StrCat(round, rank()),
                  absl::StrJoin(own, " ", [](std::string* out, double number) {
                    absl::StrAppendFormat(out, "%.9g", number);
                  })));
  std::vector<std::vector<double>> all;
  for (int peer = 0; peer < world_size(); ++peer) {
    const std::string said =
        Must(store_.Get(absl::StrCat(round, peer), kPatience));
    std::vector<double>& numbers = all.emplace_back();
    for (const auto& text : absl::StrSplit(said, ' ', absl::SkipEmpty())) {
      double number = 0;
      if (!absl::SimpleAtod(text, &number)) {
        Must(absl::InternalError(absl::StrCat("no number: ", text)));
      }
      numbers.push_back(number);
    }
    if (numbers.size() != own.size()) {
      Must(absl::InternalError("ranks gather different things"));
    }
  }
  return all;
}

std::vector<double> RankGroup::Largest(const std::vector<double>& own) {
  std::vector<double> largest = own;
  for (const std::vector<double>& numbers : Gather(own)) {
    for (size_t i = 0; i < numbers.size(); ++i) {
      largest[i] = std::max(largest[i], numbers[i]);
    }
  }
  return largest;
}

Results::Results(const RankGroup& group, const std::string& path)
    : writes_(group.rank() == 0),
      shares_gpus_(group.shares_gpus()),
      path_(path) {}

void Results::Add(const std::string& key, double value, std::string_view unit,
                  const std::string& detail) {
  if (!writes_) return;
  std::printf("%-34s %10.4g %-7s %s\n", key.c_str(), value,
              std::string(unit).c_str(), detail.c_str());
  std::fflush(stdout);
  if (path_.empty()) return;
  std::ofstream(path_, std::ios::app)
      << nlohmann::ordered_json{{"key", key},
                                {"value", value},
                                {"unit", std::string(unit)},
                                {"shared_gpus", shares_gpus_},
                                {"detail", detail}}
             .dump()
      << '\n';
}

bool RunGroup(const std::string& task, int world_size,
              const std::vector<std::string>& arguments, double seconds) {
  const absl::Time deadline = absl::Now() + absl::Seconds(seconds);
  RankProcesses ranks(task, world_size, {}, arguments);
  bool well = true;
  for (int rank = 0; rank < world_size; ++rank) {
    const int status = ranks.Join(
        rank, std::max(deadline - absl::Now(), absl::Milliseconds(50)));
    if (status == 0) continue;
    std::fprintf(stderr, "%s, %d ranks: rank %d ended with %d\n", task.c_str(),
                 world_size, rank, status);
    well = false;
  }
  return well;
}

std::vector<int> WorldSizes(const std::vector<int>& wanted) {
  const int gpus = NumGpus();
  std::vector<int> sizes = wanted;
  if (sizes.empty()) {
    for (const int size : {2, 4, 8}) {
      if (size <= gpus) sizes.push_back(size);
    }
    if (sizes.empty()) sizes.push_back(2);
  }
  for (const int size : sizes) {
    if (size <= gpus) continue;
    std::printf(
        "NOTE %d ranks share %d GPU(s), through sockets: right, but "
        "the times say nothing\n",
        size, gpus);
  }
  std::fflush(stdout);
  return sizes;
}

}  // namespace ithaca::bench
