#ifndef ITHACA_WORKER_NCCL_ULYSSES_TEST_GROUP_H_
#define ITHACA_WORKER_NCCL_ULYSSES_TEST_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "tests/oracle/tensor_data.h"
#include "worker/nccl_test_ranks.h"
#include "worker/ulysses_test_caller.h"
#include "worker/ulysses_test_rank.h"

namespace ithaca {

// A group whose ranks are processes, each on its GPU as RankProcesses has it,
// that exchange over NCCL. The caller's process sends each rank its tensors
// through a socket and takes its outputs from there.
class NcclUlyssesTestGroup : public UlyssesTestCaller {
 public:
  // What these ranks are started as (see RankRole); main() then returns
  // ServeUlyssesTestRank.
  static constexpr char kTask[] = "ulysses";

  explicit NcclUlyssesTestGroup(int world_size);
  ~NcclUlyssesTestGroup() override;

  int world_size() const override { return static_cast<int>(sockets_.size()); }
  std::vector<AttentionKernelKind> kernels() override;
  // kUnavailable: a rank has ended, or said nothing for a minute; the group is
  // of no use then.
  absl::StatusOr<std::string> Run(
      const AttentionShape& shape, const AttentionOptions& options,
      const oracle::CallInputs& inputs,
      std::vector<RankReport>* reports = nullptr) override;

 private:
  absl::StatusOr<RankReport> RunRank(int rank, const SequenceParallelPlan& plan,
                                     RankTensors& tensors);

  uint64_t call_number_ = 0;
  std::vector<int> sockets_;  // by rank
  std::unique_ptr<RankProcesses> processes_;
};

// A rank's process: joins its group and runs calls until the socket is closed.
// Returns the process's exit status.
int ServeUlyssesTestRank(const RankRole& role);

}  // namespace ithaca

#endif  // ITHACA_WORKER_NCCL_ULYSSES_TEST_GROUP_H_
