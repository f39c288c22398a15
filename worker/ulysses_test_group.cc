#include "worker/ulysses_test_group.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ithaca {

UlyssesTestGroup::UlyssesTestGroup(int world_size, PlanPolicy policy)
    : backend_(MakeUlyssesTestBackend()),
      policy_(policy),
      group_(world_size, absl::Seconds(30), backend_->CopyMemory()) {
  for (int rank = 0; rank < world_size; ++rank) {
    auto made = std::make_unique<UlyssesTestRank>(backend_->MakeDevice(),
                                                  backend_->MakeDevice());
    made->communicator =
        backend_->Order(group_.MakeCommunicator(rank), made->device.get());
    made->kernels = backend_->MakeKernels(made->device.get());
    ranks_.push_back(std::move(made));
  }
}

void UlyssesTestGroup::Replace(int rank, std::unique_ptr<Device> device) {
  auto made = std::make_unique<UlyssesTestRank>(std::move(device),
                                                backend_->MakeDevice());
  made->communicator = std::move(ranks_[rank]->communicator);
  made->kernels = std::move(ranks_[rank]->kernels);
  ranks_[rank] = std::move(made);
}

void UlyssesTestGroup::Replace(int rank,
                               std::unique_ptr<AttentionKernels> kernels) {
  ranks_[rank]->kernels = std::move(kernels);
}

absl::StatusOr<std::string> UlyssesTestGroup::Run(
    const AttentionShape& shape, const AttentionOptions& options,
    const oracle::CallInputs& inputs, std::vector<RankReport>* reports) {
  absl::StatusOr<SequenceParallelPlan> plan =
      MakeSequenceParallelPlan(shape, options, world_size(), policy_);
  if (!plan.ok()) return plan.status();
  ++call_number_;
  statuses_.assign(ranks_.size(), absl::OkStatus());
  std::vector<RankReport> rank_reports(ranks_.size());
  std::vector<RankTensors> tensors;
  for (int rank = 0; rank < world_size(); ++rank) {
    tensors.push_back(CutRankTensors(*plan, rank, inputs));
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size(); ++rank) {
    threads.emplace_back([&, rank] {
      const absl::StatusOr<RankReport> report =
          ranks_[rank]->Run(*plan, call_number_, tensors[rank]);
      statuses_[rank] = report.status();
      if (report.ok()) rank_reports[rank] = *report;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses_) {
    if (!status.ok()) return status;
  }
  if (reports != nullptr) *reports = std::move(rank_reports);
  return JoinRankOutputs(*plan, tensors);
}

}  // namespace ithaca
