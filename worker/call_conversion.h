#ifndef ITHACA_WORKER_CALL_CONVERSION_H_
#define ITHACA_WORKER_CALL_CONVERSION_H_

#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "worker/rank_call.h"
#include "worker/region.h"

// Between the internal protocol's messages and what a rank computes with.

namespace ithaca {

// All of a RankCall but its inline tensors. Errors: kInvalidArgument (an enum's
// value is unspecified or unknown, or ToRegion's); whether the shape makes
// sense is not looked at.
absl::StatusOr<RankCall> ToRankCall(const internal::v1::AttentionCall& call);

// Errors: kInvalidArgument (of no known kind).
absl::StatusOr<Region> ToRegion(const internal::v1::Region& region);

internal::v1::RankExecution ToProto(const RankResult& result);

ithaca::v1::AttentionKernel ToProto(AttentionKernelKind kernel);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CALL_CONVERSION_H_
