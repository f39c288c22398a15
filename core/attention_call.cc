#include "core/attention_call.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/data_type.h"

namespace ithaca {

namespace {

absl::Status Invalid(absl::string_view field, absl::string_view expected,
                     absl::string_view actual) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", got ", actual));
}

absl::Status CheckAtLeast(absl::string_view field, int64_t least,
                          int64_t actual) {
  if (actual >= least) return absl::OkStatus();
  return Invalid(field, absl::StrCat("at least ", least), absl::StrCat(actual));
}

// a + b and a * b of numbers >= 0; nullopt if it does not fit.
std::optional<int64_t> Add(std::optional<int64_t> a, std::optional<int64_t> b) {
  int64_t sum = 0;
  if (!a || !b || __builtin_add_overflow(*a, *b, &sum)) return std::nullopt;
  return sum;
}

std::optional<int64_t> Multiply(std::optional<int64_t> a, int64_t b) {
  int64_t product = 0;
  if (!a || __builtin_mul_overflow(*a, b, &product)) return std::nullopt;
  return product;
}

bool Known(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return true;
  }
  return false;
}

absl::Status ValidateTokens(const AttentionShape& shape) {
  if (auto status = CheckAtLeast("layout.text_tokens", 0, shape.text_tokens);
      !status.ok()) {
    return status;
  }
  if (auto status =
          CheckAtLeast("query.shape[1] (image tokens)", 0, shape.image_tokens);
      !status.ok()) {
    return status;
  }
  if (shape.image_queries_only && shape.image_tokens == 0) {
    return Invalid("query.shape[1] (image tokens)",
                   "at least 1 with layout.image_queries_only", "0");
  }
  const auto key_tokens = Add(shape.image_tokens, shape.text_tokens);
  if (!key_tokens) {
    return Invalid("key.shape[1] (tokens)",
                   absl::StrCat("at most ", std::numeric_limits<int64_t>::max(),
                                " image and text tokens"),
                   absl::StrCat(shape.image_tokens, " + ", shape.text_tokens));
  }
  return CheckAtLeast("key.shape[1] (tokens)", 1, *key_tokens);
}

absl::Status ValidateHeads(const AttentionShape& shape) {
  if (auto status = CheckAtLeast("query.shape[2] (heads)", 1, shape.num_heads);
      !status.ok()) {
    return status;
  }
  if (auto status = CheckAtLeast("key.shape[2] (heads)", 1, shape.num_kv_heads);
      !status.ok()) {
    return status;
  }
  if (shape.num_heads % shape.num_kv_heads != 0) {
    return Invalid(
        "key.shape[2] (heads)",
        absl::StrCat("a divisor of query's ", shape.num_heads, " heads"),
        absl::StrCat(shape.num_kv_heads));
  }
  if (shape.head_dim < 1 || shape.head_dim > AttentionShape::kMaxHeadDim) {
    return Invalid("query.shape[3] (head_dim)",
                   absl::StrCat("1 to ", AttentionShape::kMaxHeadDim),
                   absl::StrCat(shape.head_dim));
  }
  return absl::OkStatus();
}

absl::Status ValidateValidTextTokens(const AttentionShape& shape) {
  const auto& valid = shape.valid_text_tokens;
  // Compared as unsigned: a batch of more entries than memory holds is just
  // another mismatch.
  if (static_cast<uint64_t>(shape.batch) != valid.size()) {
    return Invalid("layout.valid_text_tokens",
                   absl::StrCat(shape.batch,
                                " entries, one for each of the "
                                "batch"),
                   absl::StrCat(valid.size()));
  }
  for (size_t b = 0; b < valid.size(); ++b) {
    if (valid[b] < 0 || valid[b] > shape.text_tokens) {
      return Invalid(
          absl::StrCat("layout.valid_text_tokens[", b, "]"),
          absl::StrCat("0 to layout.text_tokens = ", shape.text_tokens),
          absl::StrCat(valid[b]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(TokenOrder order) {
  switch (order) {
    case TokenOrder::kImageFirst:
      return "image_first";
    case TokenOrder::kTextFirst:
      return "text_first";
  }
  return "unknown";
}

std::string_view Name(CommunicationPrecision precision) {
  switch (precision) {
    case CommunicationPrecision::kNative:
      return "native";
    case CommunicationPrecision::kFp8E4m3:
      return "fp8_e4m3";
    case CommunicationPrecision::kInt8:
      return "int8";
  }
  return "unknown";
}

std::string_view Name(HeadSchedule schedule) {
  switch (schedule) {
    case HeadSchedule::kAuto:
      return "auto";
    case HeadSchedule::kFused:
      return "fused";
    case HeadSchedule::kPerHead:
      return "per_head";
  }
  return "unknown";
}

std::string_view Name(AttentionKernelKind kernel) {
  switch (kernel) {
    case AttentionKernelKind::kAuto:
      return "auto";
    case AttentionKernelKind::kMath:
      return "math";
    case AttentionKernelKind::kFlash:
      return "flash";
    case AttentionKernelKind::kCudnn:
      return "cudnn";
  }
  return "unknown";
}

std::optional<int64_t> TotalTensorBytes(const AttentionShape& shape) {
  for (const int64_t dimension :
       {shape.batch, shape.image_tokens, shape.text_tokens, shape.num_heads,
        shape.num_kv_heads, shape.head_dim}) {
    if (dimension < 0) return std::nullopt;
  }
  const auto key_tokens = Add(shape.image_tokens, shape.text_tokens);
  const auto query_tokens =
      shape.image_queries_only ? shape.image_tokens : key_tokens;
  // Query and output are alike, and so are key and value.
  const auto query_rows = Multiply(query_tokens, shape.num_heads);
  const auto key_rows = Multiply(key_tokens, shape.num_kv_heads);
  const auto rows = Multiply(Add(query_rows, key_rows), 2);
  const auto elements = Multiply(Multiply(rows, shape.head_dim), shape.batch);
  return Multiply(elements, ByteSize(shape.dtype));
}

absl::Status Validate(const AttentionShape& shape) {
  if (!Known(shape.dtype)) {
    return Invalid("query.dtype", "float32, float16 or bfloat16",
                   absl::StrCat(static_cast<int>(shape.dtype)));
  }
  if (shape.order != TokenOrder::kImageFirst &&
      shape.order != TokenOrder::kTextFirst) {
    return Invalid("layout.order", "image_first or text_first",
                   absl::StrCat(static_cast<int>(shape.order)));
  }
  if (shape.batch < 1 || shape.batch > AttentionShape::kMaxBatch) {
    return Invalid("query.shape[0] (batch)",
                   absl::StrCat("1 to ", AttentionShape::kMaxBatch),
                   absl::StrCat(shape.batch));
  }
  for (auto* check :
       {&ValidateTokens, &ValidateHeads, &ValidateValidTextTokens}) {
    if (auto status = check(shape); !status.ok()) return status;
  }
  if (!TotalTensorBytes(shape)) {
    return Invalid(
        "query.shape, key.shape",
        absl::StrCat("at most ", std::numeric_limits<int64_t>::max(),
                     " bytes in all tensors"),
        absl::StrCat("more: batch ", shape.batch, ", image tokens ",
                     shape.image_tokens, ", text tokens ", shape.text_tokens,
                     ", heads ", shape.num_heads, " and ", shape.num_kv_heads,
                     ", head_dim ", shape.head_dim));
  }
  return absl::OkStatus();
}

}  // namespace ithaca
