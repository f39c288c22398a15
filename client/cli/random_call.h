#ifndef ITHACA_CLIENT_CLI_RANDOM_CALL_H_
#define ITHACA_CLIENT_CLI_RANDOM_CALL_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "client/attention_call.h"
#include "client/cli/named_shapes.h"
#include "client/tensor.h"

namespace ithaca::client {

// Standard normal elements, rounded to the dtype. The same seed gives the same
// bytes on every machine of one libm, however many threads fill them.
void FillNormal(uint64_t seed, Tensor* tensor);

// Query, key, value and output together; nullopt if that does not fit int64 or
// a dimension is negative.
std::optional<int64_t> TotalBytes(const CallShape& shape);

// A call of the shape with random tensors, which it owns.
// Errors: kInvalidArgument (no such tensors can be), kResourceExhausted (the
// query, key and value would be larger than max_request_bytes together).
absl::StatusOr<AttentionArguments> MakeRandomCall(const CallShape& shape,
                                                  uint64_t seed,
                                                  int64_t max_request_bytes);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_RANDOM_CALL_H_
