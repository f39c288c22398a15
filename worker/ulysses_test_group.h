#ifndef ITHACA_WORKER_ULYSSES_TEST_GROUP_H_
#define ITHACA_WORKER_ULYSSES_TEST_GROUP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "tests/oracle/tensor_data.h"
#include "worker/arena.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/device.h"
#include "worker/in_process_communicator.h"
#include "worker/ulysses_attention.h"
#include "worker/ulysses_test_backend.h"

namespace ithaca {

// The attention of a whole group on threads of one test, on what the test's
// backend gives: whole tensors go in, as a caller has them, and whole outputs
// come out. Ranks keep their arenas from call to call, as workers do.
class UlyssesTestGroup {
 public:
  explicit UlyssesTestGroup(int world_size, PlanPolicy policy = {});

  // One call; the output [B, Nq, Hq, D] in the caller's token order. Fails with
  // the lowest failing rank's status. `reports`, if set, by rank.
  absl::StatusOr<std::string> Run(const AttentionShape& shape,
                                  const AttentionOptions& options,
                                  const oracle::CallInputs& inputs,
                                  std::vector<RankReport>* reports = nullptr);

  // What each rank returned for the last call.
  const std::vector<absl::Status>& statuses() const { return statuses_; }

  int world_size() const { return static_cast<int>(ranks_.size()); }
  InProcessGroup& faults() { return group_; }
  Communicator& communicator(int rank) { return *ranks_[rank]->communicator; }
  Arena& arena(int rank) { return ranks_[rank]->arena; }
  // Kernels of the backend.
  std::vector<AttentionKernelKind> kernels() { return backend_->Kernels(); }
  // Another device or other kernels for one rank.
  void Replace(int rank, std::unique_ptr<Device> device);
  void Replace(int rank, std::unique_ptr<AttentionKernels> kernels);

 private:
  struct RankTensors;
  struct Rank {
    Rank(std::unique_ptr<Device> on, std::unique_ptr<Device> tensors_on)
        : device(std::move(on)),
          arena(device.get()),
          tensors_device(std::move(tensors_on)),
          tensors(tensors_device.get()) {}

    std::unique_ptr<Device> device;
    Arena arena;
    // Inputs and outputs are none of the business of a device that fails.
    std::unique_ptr<Device> tensors_device;
    Arena tensors;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<AttentionKernels> kernels;
  };

  const std::unique_ptr<UlyssesTestBackend> backend_;
  const PlanPolicy policy_;
  InProcessGroup group_;
  // One rank's part: its tensors go to its device, and the outputs come back.
  absl::StatusOr<RankReport> RunRank(Rank& rank,
                                     const SequenceParallelPlan& plan,
                                     RankTensors& tensors);

  uint64_t call_number_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<absl::Status> statuses_;
};

// 1 / sqrt(D) as scale; NATIVE, fused, MATH.
AttentionOptions DefaultOptions(const AttentionShape& shape);

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_TEST_GROUP_H_
