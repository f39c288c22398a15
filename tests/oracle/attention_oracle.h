#ifndef ITHACA_TESTS_ORACLE_ATTENTION_ORACLE_H_
#define ITHACA_TESTS_ORACLE_ATTENTION_ORACLE_H_

#include <string_view>
#include <vector>

#include "core/attention_call.h"
#include "core/data_type.h"
#include "tests/oracle/tensor_data.h"

// Attention by its definition, in float64, to judge everything else by. It
// knows nothing of ranks or plans.
//
//   out[b, i, h, :] = sum_t w_t * value[b, t, g, :] / sum_t w_t
//   w_t = exp(x_t - max x),  x_t = scale * query[b, i, h, :] . key[b, t, g, :]
//
// over the kept keys t: every image token and text tokens with index < V[b];
// g = floor(h * Hkv / Hq). Padded keys and values are never read. A padded
// text query row is 0, and so is a row without a kept key.

namespace ithaca::oracle {

// [B, Nq, Hq, D], tokens in the caller's order. Inputs are dense bytes of
// shape.dtype. REQUIRES: Validate(shape).ok() and the byte counts of the shape.
// NaN and infinity follow IEEE rules. Cost: B * Nq * (S + T) * Hq * D.
std::vector<double> Attention(const AttentionShape& shape, double softmax_scale,
                              std::string_view query, std::string_view key,
                              std::string_view value);

std::vector<double> Attention(const AttentionShape& shape, double softmax_scale,
                              const CallInputs& inputs);

// 1 / sqrt(D), the scale of a call that sets none.
double DefaultScale(const AttentionShape& shape);

// ||actual - expected|| / ||expected||, over all elements; NaN if either holds
// a NaN or an infinity (then no bound is met), and infinity if expected is 0
// and actual is not. REQUIRES: equal sizes.
double RelativeL2Error(const std::vector<double>& actual,
                       const std::vector<double>& expected);

// The error accepted of a call with NATIVE communication: float32 1e-5,
// float16 1e-3, bfloat16 8e-3.
double AcceptedError(DataType dtype);

}  // namespace ithaca::oracle

#endif  // ITHACA_TESTS_ORACLE_ATTENTION_ORACLE_H_
