#ifndef ITHACA_SERVER_GATHER_H_
#define ITHACA_SERVER_GATHER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "core/sequence_parallel_plan.h"
#include "server/fan_out.h"
#include "server/memory_region.h"
#include "server/pending_call.h"

namespace ithaca::server {

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
