#ifndef ITHACA_TESTS_INTEGRATION_RANK_CALLS_H_
#define ITHACA_TESTS_INTEGRATION_RANK_CALLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "tests/oracle/tensor_data.h"

// Calls to workers' RankService with the generated classes alone: what the
// coordinator does by reference, done here by copying, to judge it by.

namespace ithaca::testing {

// Rank `rank`'s request of a call; the last rank returns the text output.
internal::v1::RunAttentionRequest MakeRankRequest(
    const SequenceParallelPlan& plan, uint64_t generation, uint64_t call_number,
    const oracle::CallInputs& inputs, int rank);

// The whole output [B, Nq, Hq, D] in the caller's token order.
// REQUIRES: responses by rank, of the sizes that the plan gives.
std::string JoinOutputs(
    const SequenceParallelPlan& plan,
    const std::vector<internal::v1::RunAttentionResponse>& responses);

struct CallResult {
  std::vector<grpc::Status> statuses;  // by rank
  std::vector<internal::v1::RunAttentionResponse> responses;
};

// Calls all ranks at once and waits for all of them, at most a minute.
CallResult CallRanks(
    const std::vector<std::string>& addresses,
    const std::vector<internal::v1::RunAttentionRequest>& requests);

}  // namespace ithaca::testing

#endif  // ITHACA_TESTS_INTEGRATION_RANK_CALLS_H_
