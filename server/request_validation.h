#ifndef ITHACA_SERVER_REQUEST_VALIDATION_H_
#define ITHACA_SERVER_REQUEST_VALIDATION_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "server/attention_message.h"
#include "server/memory_region.h"

// The sole judge of what clients send. What passes here is right in every
// number; nothing behind it checks a request again.

namespace ithaca::server {

struct RequestLimits {
  // All of one call's tensors, output included.
  int64_t max_request_bytes = int64_t{4} << 30;
  // The longest response message; with kInMessage the output travels in one.
  int64_t max_message_bytes = int64_t{1} << 30;
  // Kernels of the groups that are ready; nullopt if none is, and then the
  // wanted kernel is not judged: such a call ends at the queue.
  std::optional<std::vector<AttentionKernelKind>> kernels;
  // The regions that this client may use; empty if no memory plane is enabled.
  RegionLookup regions;
};

inline constexpr int64_t kMaxRequestIdBytes = 256;

// How tensors travel that are in no region: as `data` of their Tensor message,
// or apart from it, in chunks, and then their `data` is unset.
enum class TensorTransport : uint8_t { kInMessage, kInChunks };

struct ValidRequest {
  AttentionShape shape;  // valid_text_tokens filled in
  AttentionOptions options;
  std::vector<int64_t> output_shape;  // query's, of rank 3 or 4 as sent
  CallRegions regions;                // held for the call
  int64_t input_bytes = 0;            // query, key and value
  int64_t tensor_bytes = 0;           // and the output
  int64_t inline_bytes = 0;           // of these, what is in no region
};

// Checks everything that can be wrong with one request by itself. Allocates
// nothing before the byte counts are known to be right.
//
// Errors, each naming the field, what was expected and what came:
//   kInvalidArgument    shape, dtype, byte count, layout, option or id
//   kUnimplemented      a memory slice where no memory plane is enabled; a
//                       kernel that no ready group has
//   kNotFound           a region that this client does not have
//   kFailedPrecondition a region whose memory has shrunk
//   kResourceExhausted  over a limit; max_message_bytes is none with kInChunks
absl::StatusOr<ValidRequest> ValidateRequest(
    const ReceivedRequest& request, const RequestLimits& limits,
    TensorTransport transport = TensorTransport::kInMessage);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_REQUEST_VALIDATION_H_
