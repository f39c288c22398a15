#ifndef ITHACA_WORKER_NCCL_TEST_RANKS_H_
#define ITHACA_WORKER_NCCL_TEST_RANKS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "worker/cuda_device.h"
#include "worker/file_rendezvous_store.h"
#include "worker/nccl_communicator.h"

// Groups of processes, one a rank, for tests and benchmarks: the program starts
// itself again for each rank, and its main() asks ParseRankRole first. Rank r
// takes GPU r, modulo their number; ranks that share a GPU get a host identity
// each, since NCCL takes no two ranks of a host on one: slow, and NCCL's own
// groups, order and faults.

namespace ithaca {

struct RankRole {
  std::string task;  // what the starting program calls it; no comma
  int rank = 0;
  int world_size = 0;
  std::string folder;  // of the group's rendezvous store

  int last() const { return world_size - 1; }
};

// What this process was started as, or nothing: then it is not a rank. Ends
// the process on a malformed role.
absl::optional<RankRole> ParseRankRole(int argc, char** argv);

// GPUs that CUDA shows; 0 without a driver.
int NumGpus();

// The rank's GPU. To be called before anything of NCCL.
absl::StatusOr<std::unique_ptr<CudaDevice>> OpenRankGpu(const RankRole& role);

// Meets the other ranks in `folder`; votes go over Gloo.
absl::StatusOr<std::unique_ptr<NcclCommunicator>> ConnectRank(
    CudaDevice* device, const std::string& folder, int rank, int world_size,
    absl::Duration exchange_timeout, absl::Duration patience);

// The processes of a group.
class RankProcesses {
 public:
  // Starts them. Each finds `descriptors[rank]`, where there is one, as its
  // file descriptor kRankDescriptor, and `arguments` before its role, which is
  // the last argument. Ends this process if one does not start.
  RankProcesses(const std::string& task, int world_size,
                const std::vector<int>& descriptors = {},
                const std::vector<std::string>& arguments = {});
  // Kills those that still run.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  // Waits for the rank's end: its exit status, or -1 for one that was killed
  // or did not end in time.
  int Join(int rank, absl::Duration patience);

  static constexpr int kRankDescriptor = 3;

 private:
  const FileRendezvousStore store_;
  std::vector<pid_t> pids_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_NCCL_TEST_RANKS_H_
