#include "server/gather.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "ithaca/v1/attention.pb.h"
#include "server/fan_out.h"
#include "server/pending_call.h"
#include "server/protocol_enums.h"
#include "server/rank_message.h"

namespace ithaca::server {

absl::StatusOr<CallOutcome> GatherExecutions(
    const SequenceParallelPlan& plan, const std::string& group,
    uint64_t generation, double queue_seconds,
    const std::vector<const internal::v1::RankExecution*>& executions) {
  CallOutcome outcome;
  ithaca::v1::ExecutionReport& report = outcome.report;
  auto& stages = *report.mutable_stage_seconds();
  uint64_t most_bytes = 0;
  for (size_t rank = 0; rank < executions.size(); ++rank) {
    const internal::v1::RankExecution& execution = *executions[rank];
    if (execution.kernel() != executions[0]->kernel()) {
      return absl::InternalError(
          absl::StrCat("rank ", rank, " ran another kernel than rank 0: ",
                       static_cast<int>(execution.kernel()), ", not ",
                       static_cast<int>(executions[0]->kernel())));
    }
    for (const auto& [stage, seconds] : execution.stage_seconds()) {
      double& slowest = stages[stage];
      slowest = std::max(slowest, seconds);
    }
    outcome.slowest_rank_seconds =
        std::max(outcome.slowest_rank_seconds, execution.total_seconds());
    most_bytes = std::max(most_bytes, execution.communication_bytes());
    outcome.communication_bytes +=
        static_cast<int64_t>(execution.communication_bytes());
  }
  report.set_group(group);
  report.set_group_generation(generation);
  report.set_world_size(static_cast<uint32_t>(plan.world_size));
  report.set_communication_precision(ToProto(plan.options.precision));
  report.set_head_schedule(ToProto(plan.options.schedule));
  report.set_kernel(executions[0]->kernel());
  report.set_queue_seconds(queue_seconds);
  report.set_communication_bytes(most_bytes);
  return outcome;
}

absl::StatusOr<CallOutcome> Gather(const SequenceParallelPlan& plan,
                                   const std::string& group,
                                   uint64_t generation, double queue_seconds,
                                   OutputPlace place, const FanOut& fan_out) {
  std::vector<RankResponse> responses(static_cast<size_t>(plan.world_size));
  std::vector<const internal::v1::RankExecution*> executions;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    RankResponse& response = responses[static_cast<size_t>(rank)];
    if (auto status = ParseRankResponse(plan, place, rank,
                                        fan_out.response(rank), &response);
        !status.ok()) {
      return status;
    }
    executions.push_back(&response.execution);
  }
  auto outcome =
      GatherExecutions(plan, group, generation, queue_seconds, executions);
  if (!outcome.ok()) return outcome;
  if (place == OutputPlace::kResponse) {
    outcome->output = GatherOutput(plan, responses);
  }
  return outcome;
}

}  // namespace ithaca::server
