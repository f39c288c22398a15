#ifndef ITHACA_CLIENT_CLI_NAMED_SHAPES_H_
#define ITHACA_CLIENT_CLI_NAMED_SHAPES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ithaca/v1/attention.pb.h"

// The shape of a call that the command line makes up, and the shapes of real
// models by name.

namespace ithaca::client {

struct CallShape {
  int64_t batch = 1;
  int64_t image_tokens = 0;
  int64_t text_tokens = 0;
  std::vector<int64_t> valid_text_tokens = {};  // empty = all valid
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  int64_t head_dim = 1;
  ithaca::v1::DataType dtype = ithaca::v1::DATA_TYPE_BFLOAT16;
  ithaca::v1::TokenOrder order = ithaca::v1::TOKEN_ORDER_IMAGE_FIRST;
  bool image_queries_only = false;

  std::vector<int64_t> QueryShape() const;
  std::vector<int64_t> KeyShape() const;
  ithaca::v1::SequenceLayout Layout() const;
  // "4096 image + 512 text tokens, 24 heads, head dim 128, bfloat16"
  std::string Text() const;
};

struct NamedShape {
  std::string_view name;  // "flux"
  std::string_view what;  // "FLUX.1, 1024 x 1024"
  int64_t image_tokens = 0;
  int64_t text_tokens = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;

  CallShape Shape() const;  // bfloat16, batch 1
};

std::span<const NamedShape> NamedShapes();

// Null if there is none of the name.
const NamedShape* FindNamedShape(std::string_view name);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_NAMED_SHAPES_H_
