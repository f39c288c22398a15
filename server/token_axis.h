#ifndef ITHACA_SERVER_TOKEN_AXIS_H_
#define ITHACA_SERVER_TOKEN_AXIS_H_

#include <cstdint>

#include "core/attention_call.h"
#include "core/data_type.h"

namespace ithaca::server {

// Where image and text lie in a [B, tokens, heads, D] tensor of the caller.
// Offsets and sizes are bytes.
struct TokenAxis {
  int64_t row_bytes = 0;  // one token of one batch element
  int64_t image_tokens = 0;
  int64_t text_tokens = 0;
  bool text_first = false;

  int64_t image_bytes() const { return image_tokens * row_bytes; }
  int64_t text_bytes() const { return text_tokens * row_bytes; }
  // One batch element.
  int64_t bytes() const { return image_bytes() + text_bytes(); }
  // Within a batch element.
  int64_t image_begin() const { return text_first ? text_bytes() : 0; }
  int64_t text_begin() const { return text_first ? 0 : image_bytes(); }
};

// Of query and output.
inline TokenAxis QueryAxis(const AttentionShape& shape) {
  return {shape.num_heads * shape.head_dim * ByteSize(shape.dtype),
          shape.image_tokens, shape.text_query_tokens(),
          shape.order == TokenOrder::kTextFirst};
}

// Of key and value.
inline TokenAxis KeyAxis(const AttentionShape& shape) {
  return {shape.num_kv_heads * shape.head_dim * ByteSize(shape.dtype),
          shape.image_tokens, shape.text_tokens,
          shape.order == TokenOrder::kTextFirst};
}

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_TOKEN_AXIS_H_
