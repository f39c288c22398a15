#ifndef ITHACA_WORKER_RANK_CALL_H_
#define ITHACA_WORKER_RANK_CALL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/attention_call.h"
#include "worker/host_buffer_pool.h"
#include "worker/region.h"
#include "worker/ulysses_attention.h"

// What a rank is asked, and what it answers.

namespace ithaca {

struct RankCall {
  uint64_t number = 0;
  uint64_t plan_fingerprint = 0;  // the coordinator's plan
  AttentionShape shape;
  AttentionOptions options;
  bool return_text_output = false;
  // Why this rank cannot run the call, if so: it then only votes.
  absl::Status refusal;
  // The caller's whole tensors where they are in a region: query and output
  // [B, tokens, Hq, D], key and value [B, tokens, Hkv, D].
  std::optional<RegionSlice> query, key, value, output;
  // What is not: dense, back to back, in pieces cut anywhere: image query
  // [B, S_r, Hq, D], image key and value [B, S_r, Hkv, D], text query
  // [B, T, Hq, D] (none with image_queries_only), text key and value
  // [B, T, Hkv, D].
  std::vector<std::string_view> tensors;
  bool tensors_are_pinned = false;  // they lie in page-locked memory
  // Keeps them; let go as soon as they are on the device.
  std::shared_ptr<const void> tensors_owner;
};

struct RankResult {
  // Image output [B, S_r, Hq, D], then the text output [B, T, Hq, D] where it
  // was asked for and there is one: the first `output_bytes` of `output`; none
  // with an output region.
  std::shared_ptr<const HostBuffer> output;
  int64_t output_bytes = 0;
  RankReport report;
  double total_seconds = 0;  // from the first byte taken to the last returned
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_CALL_H_
