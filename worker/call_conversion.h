#ifndef ITHACA_WORKER_CALL_CONVERSION_H_
#define ITHACA_WORKER_CALL_CONVERSION_H_

#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "worker/rank_executor.h"

// Between the internal protocol's messages and what a rank computes with.

namespace ithaca {

// All of a RankCall but its tensors. Errors: kInvalidArgument (an enum's value
// is unspecified or unknown); whether the shape makes sense is not looked at.
absl::StatusOr<RankCall> ToRankCall(const internal::v1::AttentionCall& call);

internal::v1::RankExecution ToProto(const RankResult& result);

ithaca::v1::AttentionKernel ToProto(AttentionKernelKind kernel);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CALL_CONVERSION_H_
