#ifndef ITHACA_WORKER_VALUE_RANGE_H_
#define ITHACA_WORKER_VALUE_RANGE_H_

#include <cstdint>

#include "core/data_type.h"
#include "worker/attention_kernel.h"

namespace ithaca {

// The largest absolute value of the rows: infinity if one is infinite, NaN if
// one is NaN, 0 if there is none. On the host. Cost: one pass.
float AbsoluteMaximum(DataType dtype, int64_t head_dim, const TokenRows& rows);

// Whether no logit of these rows can overflow or be NaN in float32, and every
// value is finite: then no kernel has an infinity or a NaN to lose. Never true
// of inputs that hold one.
bool AttentionStaysFinite(const AttentionArguments& arguments);

}  // namespace ithaca

#endif  // ITHACA_WORKER_VALUE_RANGE_H_
