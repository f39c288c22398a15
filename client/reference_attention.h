#ifndef ITHACA_CLIENT_REFERENCE_ATTENTION_H_
#define ITHACA_CLIENT_REFERENCE_ATTENTION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "client/attention_call.h"
#include "client/tensor.h"

// Attention by its definition, in float64, to check a server's answer with:
//
//   out[b, i, h, :] = softmax(scale * q[b, i, h, :] . k[b, :, g, :]) v[b, :, g,
//   :]
//
// g = floor(h * Hkv / Hq), over image tokens and the first V[b] text tokens;
// zeros for padded text queries and where no key is kept.

namespace ithaca::client {

struct ReferenceOptions {
  // Query rows (b, i, h) are sampled so that no more multiply-adds are spent;
  // at least one row for each (b, h), spread evenly, ends included.
  double max_multiply_adds = 2e9;
  int threads = 0;  // 0 = as many as the machine has
};

struct OutputError {
  // ||out - reference|| / ||reference|| over the compared rows; infinite if
  // one has a NaN or an infinity where the other has not.
  double relative_l2 = 0;
  int64_t compared_rows = 0;
  int64_t all_rows = 0;
};

// Compares `output`, [B, query tokens, Hq, D] as the call's query, with the
// definition on the call's own (rounded) inputs.
// Errors: kInvalidArgument (the shapes are no attention call).
absl::StatusOr<OutputError> CompareWithReference(
    const AttentionArguments& call, const Tensor& output,
    const ReferenceOptions& options = {});

// The error that a right answer stays below: rounding of the dtype, and the
// wire's where communication_precision is FP8_E4M3 or INT8 (for inputs
// without outliers, as random normal ones are).
double RelativeL2Limit(ithaca::v1::DataType dtype,
                       ithaca::v1::CommunicationPrecision precision);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_REFERENCE_ATTENTION_H_
