#ifndef ITHACA_WORKER_ATTENTION_KERNEL_H_
#define ITHACA_WORKER_ATTENTION_KERNEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "core/data_type.h"
#include "core/sequence_parallel_plan.h"

// Attention of one batch element over heads that share kv heads evenly, all
// keys kept: padding is cut away before, by the lengths.
//
//   out[i, h, :] = softmax(scale * q[i, h, :] . k[:, g, :]) v[:, g, :],
//   g = h / (num_heads / num_kv_heads)
//
// Logits, maximum and sums in float32 at least; one rounding, to dtype.

namespace ithaca {

// Rows of [tokens, heads, D]: element (t, h, d) at
// data + t * token_stride + h * head_stride + d, in elements. head_stride may
// be 0 (one head seen as many).
struct TokenRows {
  const void* data = nullptr;
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
};

struct AttentionArguments {
  DataType dtype = DataType::kFloat32;
  int64_t head_dim = 0;
  double softmax_scale = 1.0;
  TokenRows query;  // tokens >= 1
  TokenRows key;    // tokens >= 1, heads divide query.heads
  TokenRows value;  // as key
  AttentionKernelKind kernel = AttentionKernelKind::kMath;  // not kAuto
};

// [query.tokens, query.heads, D], head_stride D. The memory may be the
// kernel's own: it lives as long as `owner`.
struct AttentionResult {
  TokenRows out;
  std::shared_ptr<const void> owner;
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;

  // The kernel that runs for a call: `wanted`, or the best for kAuto.
  // Errors: kUnimplemented, naming the kernel, the device and the limit.
  virtual absl::StatusOr<AttentionKernelKind> Choose(
      AttentionKernelKind wanted, const AttentionShape& shape) const = 0;

  // Kinds that Choose accepts on this device for some shape.
  virtual std::vector<AttentionKernelKind> Available() const = 0;

  // Sees to the memory that Attend will take, with the kernel that Choose gave,
  // for this rank's part of the plan, so that no call fails for want of it
  // once its exchanges have begun. Errors: kResourceExhausted.
  virtual absl::Status Reserve(const SequenceParallelPlan& /*plan*/,
                               int /*rank*/, AttentionKernelKind /*kernel*/) {
    return absl::OkStatus();
  }

  // Queues the work on the device. Errors: kResourceExhausted (memory),
  // kInternal (the library failed; what it said is in the message).
  virtual absl::StatusOr<AttentionResult> Attend(
      const AttentionArguments& arguments) = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_ATTENTION_KERNEL_H_
