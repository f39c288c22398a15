#ifndef ITHACA_TESTS_BENCH_RANK_GROUP_H_
#define ITHACA_TESTS_BENCH_RANK_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/cuda_device.h"
#include "worker/file_rendezvous_store.h"
#include "worker/nccl_communicator.h"
#include "worker/nccl_test_ranks.h"

namespace ithaca::bench {

// The value, or the process's end with what went wrong.
template <typename T>
T Must(absl::StatusOr<T> value);
void Must(const absl::Status& status);

// One rank's end of a benchmark's group: its GPU, its communicator, and what
// ranks tell each other between measurements. A process has one. Every rank
// makes the same calls; all of them end the process if a peer is gone.
class RankGroup {
 public:
  explicit RankGroup(const RankRole& role);

  int rank() const { return role_.rank; }
  int world_size() const { return role_.world_size; }
  // Whether ranks share a GPU: then times say nothing.
  bool shares_gpus() const { return shares_gpus_; }
  CudaDevice& device() { return *device_; }
  NcclCommunicator& communicator() { return *communicator_; }

  // Returns when every rank has come here, its GPU idle.
  void Barrier();
  // For the calls of UlyssesAttention: the same on every rank, each once.
  uint64_t NextCallNumber() { return ++call_number_; }
  // What each rank says, as many numbers each: by rank, on every rank.
  std::vector<std::vector<double>> Gather(const std::vector<double>& own);
  // The largest of what the ranks say, number by number.
  std::vector<double> Largest(const std::vector<double>& own);

 private:
  const RankRole role_;
  const bool shares_gpus_;
  FileRendezvousStore store_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<NcclCommunicator> communicator_;
  uint64_t call_number_ = 0;
  int gathered_ = 0;
};

// Results, a JSON object a line, added to a file: only rank 0 writes.
class Results {
 public:
  // An empty path: none are kept.
  Results(const RankGroup& group, const std::string& path);

  // `key` is the figure's name, such as "M1/Wan720/P8/native/fused"; `detail`
  // says more for people.
  void Add(const std::string& key, double value, std::string_view unit,
           const std::string& detail = "");

 private:
  const bool writes_;
  const bool shares_gpus_;
  const std::string path_;
};

// Starts this program again as the ranks of a group and waits for them.
// Returns whether all ended well in `seconds`.
bool RunGroup(const std::string& task, int world_size,
              const std::vector<std::string>& arguments, double seconds);

// `wanted`, or if that is empty 2, 4 and 8 as far as there are GPUs, or 2 ranks
// on the one GPU there is. Says so where ranks will share.
std::vector<int> WorldSizes(const std::vector<int>& wanted);

template <typename T>
T Must(absl::StatusOr<T> value) {
  Must(value.status());
  return *std::move(value);
}

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_RANK_GROUP_H_
