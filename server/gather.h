#ifndef ITHACA_SERVER_GATHER_H_
#define ITHACA_SERVER_GATHER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/fan_out.h"
#include "server/memory_region.h"
#include "server/pending_call.h"

namespace ithaca::server {

// The report of a call that all ranks ran, each stage that of its slowest rank.
// executions: by rank.
// Errors: kInternal (ranks ran different kernels: the group must go).
absl::StatusOr<CallOutcome> GatherExecutions(
    const SequenceParallelPlan& plan, const std::string& group,
    uint64_t generation, double queue_seconds,
    const std::vector<const internal::v1::RankExecution*>& executions);

// The end of a call that all ranks answered: their outputs joined, by
// reference (nothing, where the ranks wrote them to a region), and the report,
// each stage that of its slowest rank. REQUIRES: every rank's status in fan_out
// is OK. Errors: kInternal (an answer is not what the plan asks for, or ranks
// ran different kernels: the group must go).
absl::StatusOr<CallOutcome> Gather(const SequenceParallelPlan& plan,
                                   const std::string& group,
                                   uint64_t generation, double queue_seconds,
                                   OutputPlace place, const FanOut& fan_out);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GATHER_H_
