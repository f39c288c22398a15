#ifndef ITHACA_CORE_ATTENTION_CALL_H_
#define ITHACA_CORE_ATTENTION_CALL_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "core/data_type.h"

// What one attention call is, in numbers: no tensors, no I/O.
//
// Symbols, here and everywhere: B batch, P ranks, S image tokens, T text tokens
// with padding, V[b] valid ones, Hq query heads, Hkv key/value heads, D head
// dim.

namespace ithaca {

enum class TokenOrder : uint8_t { kImageFirst, kTextFirst };

// Encoding of q, k, v and output rows on the wire between ranks.
enum class CommunicationPrecision : uint8_t { kNative, kFp8E4m3, kInt8 };

// kAuto is resolved by MakeSequenceParallelPlan; a plan never holds it.
enum class HeadSchedule : uint8_t { kAuto, kFused, kPerHead };

// kAuto is resolved by each rank's kernel set (same device, same answer).
enum class AttentionKernelKind : uint8_t { kAuto, kMath, kFlash, kCudnn };

std::string_view Name(TokenOrder order);                  // "image_first"
std::string_view Name(CommunicationPrecision precision);  // "native"
std::string_view Name(HeadSchedule schedule);             // "per_head"
std::string_view Name(AttentionKernelKind kernel);        // "flash"

// The shape of one call. Query is [B, S + T, Hq, D], or [B, S, Hq, D] with
// image_queries_only; key and value are [B, S + T, Hkv, D].
struct AttentionShape {
  DataType dtype = DataType::kFloat32;
  int64_t batch = 1;         // B in [1, kMaxBatch]
  int64_t image_tokens = 0;  // S >= 0
  int64_t text_tokens = 0;   // T >= 0, padding included; S + T >= 1
  // V[b] in [0, T], one per batch element (always B entries).
  std::vector<int64_t> valid_text_tokens;
  TokenOrder order = TokenOrder::kImageFirst;
  bool image_queries_only = false;  // REQUIRES: S >= 1 when set
  int64_t num_heads = 1;            // Hq >= 1
  int64_t num_kv_heads = 1;         // Hkv >= 1, divides Hq
  int64_t head_dim = 1;             // D in [1, kMaxHeadDim]

  static constexpr int64_t kMaxHeadDim = 256;
  // What is kept, sent and launched for each batch element is in no budget of
  // bytes.
  static constexpr int64_t kMaxBatch = 16384;

  // Text tokens that carry a query: 0 with image_queries_only, else T.
  int64_t text_query_tokens() const {
    return image_queries_only ? 0 : text_tokens;
  }
  int64_t query_tokens() const { return image_tokens + text_query_tokens(); }
  int64_t key_tokens() const { return image_tokens + text_tokens; }

  friend bool operator==(const AttentionShape&,
                         const AttentionShape&) = default;
};

struct AttentionOptions {
  // Logits are multiplied by it; finite. The caller's default, 1/sqrt(D) of
  // the caller's D, is filled in before this struct is made.
  double softmax_scale = 1.0;
  CommunicationPrecision precision = CommunicationPrecision::kNative;
  HeadSchedule schedule = HeadSchedule::kAuto;
  AttentionKernelKind kernel = AttentionKernelKind::kAuto;

  friend bool operator==(const AttentionOptions&,
                         const AttentionOptions&) = default;
};

// Bytes of the three inputs and the output together; nullopt if a dimension is
// negative or the number does not fit in int64. Safe for any field values.
std::optional<int64_t> TotalTensorBytes(const AttentionShape& shape);

// kInvalidArgument, naming the field with the expected and the actual value,
// unless every bound written above holds and TotalTensorBytes has a value.
absl::Status Validate(const AttentionShape& shape);

}  // namespace ithaca

#endif  // ITHACA_CORE_ATTENTION_CALL_H_
