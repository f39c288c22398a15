#ifndef ITHACA_SERVER_RANK_MESSAGE_H_
#define ITHACA_SERVER_RANK_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/memory_region.h"
#include "server/tensor_bytes.h"

// A call's tensors, cut into the ranks' shares and joined again: scatter and
// gather, as bytes by reference. Pure functions.

namespace ithaca::server {

// The rank that sends the text output: the last one, which never has more
// image tokens than another.
inline int TextOutputRank(const SequenceParallelPlan& plan) {
  return plan.world_size - 1;
}

// What all ranks are told of a call (return_text_output is left unset).
ithaca::internal::v1::AttentionCall DescribeCall(
    const SequenceParallelPlan& plan, const CallRegions& regions,
    const std::string& request_id, uint64_t generation, uint64_t call_number);

// A RunAttentionRequest for each rank. call: from DescribeCall. tensors: of
// exactly the sizes that the plan's shape has; those in regions are left out.
std::vector<grpc::ByteBuffer> MakeRankRequests(
    const SequenceParallelPlan& plan,
    const ithaca::internal::v1::AttentionCall& call,
    const CallTensors& tensors);

struct RankResponse {
  ithaca::internal::v1::RankExecution execution;
  TensorBytes output;
};

// Errors: kInternal (not a RunAttentionResponse, or its output is not of the
// size that the plan gives this rank, none where it goes to a region).
absl::Status ParseRankResponse(const SequenceParallelPlan& plan,
                               OutputPlace place, int rank,
                               const grpc::ByteBuffer& message,
                               RankResponse* response);

// The whole output, [B, S + T, Hq, D] in the caller's token order ([B, S, Hq,
// D] with image_queries_only). responses: by rank, each as ParseRankResponse
// takes it with OutputPlace::kResponse.
TensorBytes GatherOutput(const SequenceParallelPlan& plan,
                         absl::Span<const RankResponse> responses);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_RANK_MESSAGE_H_
