#ifndef ITHACA_WORKER_ULYSSES_TEST_GROUP_H_
#define ITHACA_WORKER_ULYSSES_TEST_GROUP_H_

#include <cstdint>
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
#include "worker/ulysses_test_caller.h"
#include "worker/ulysses_test_rank.h"

namespace ithaca {

// A group whose ranks are threads of the test, on what the test's backend
// gives.
class UlyssesTestGroup : public UlyssesTestCaller {
 public:
  explicit UlyssesTestGroup(int world_size, PlanPolicy policy = {});

  absl::StatusOr<std::string> Run(
      const AttentionShape& shape, const AttentionOptions& options,
      const oracle::CallInputs& inputs,
      std::vector<RankReport>* reports = nullptr) override;

  // What each rank returned for the last call.
  const std::vector<absl::Status>& statuses() const { return statuses_; }

  int world_size() const override { return static_cast<int>(ranks_.size()); }
  InProcessGroup& faults() { return group_; }
  Communicator& communicator(int rank) { return *ranks_[rank]->communicator; }
  Arena& arena(int rank) { return ranks_[rank]->arena; }
  std::vector<AttentionKernelKind> kernels() override {
    return backend_->Kernels();
  }
  // Another device or other kernels for one rank.
  void Replace(int rank, std::unique_ptr<Device> device);
  void Replace(int rank, std::unique_ptr<AttentionKernels> kernels);

 private:
  const std::unique_ptr<UlyssesTestBackend> backend_;
  const PlanPolicy policy_;
  InProcessGroup group_;
  uint64_t call_number_ = 0;
  std::vector<std::unique_ptr<UlyssesTestRank>> ranks_;
  std::vector<absl::Status> statuses_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_TEST_GROUP_H_
