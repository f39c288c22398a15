#ifndef ITHACA_WORKER_WARM_SHAPES_H_
#define ITHACA_WORKER_WARM_SHAPES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"

namespace ithaca {

// A call that a worker prepares for before it is ready.
struct WarmShape {
  AttentionShape shape;
  AttentionOptions options;

  friend bool operator==(const WarmShape&, const WarmShape&) = default;
};

// The text of a --warm-shapes file: a call a line, words as the flags of
// `ithaca attend` have them, # for comments.
//
//   # FLUX.1 with prompts of up to 512 tokens
//   image-tokens=4096 text-tokens=512 heads=24 head-dim=128 dtype=bfloat16
//   image-tokens=75600 heads=40 head-dim=128 dtype=bfloat16 precision=fp8_e4m3
//
// image-tokens, heads and head-dim are needed. The rest: batch, text-tokens,
// valid-text=N,N,... (default: all), kv-heads (default: heads), order,
// image-queries-only (no value), dtype (default: bfloat16), scale (default:
// 1/sqrt(head-dim)), precision, schedule, kernel.
//
// Errors: kInvalidArgument, naming the line and the word.
absl::StatusOr<std::vector<WarmShape>> ParseWarmShapes(std::string_view text);

// Errors: as above, and kNotFound (no such file).
absl::StatusOr<std::vector<WarmShape>> ReadWarmShapes(const std::string& path);

}  // namespace ithaca

#endif  // ITHACA_WORKER_WARM_SHAPES_H_
