#include "client/cli/named_shapes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/tensor.h"

namespace ithaca::client {
namespace {

constexpr NamedShape kShapes[] = {
    {"tiny", "for trying things out", 16, 4, 4, 8},
    {"small", "for a quick check", 512, 64, 8, 64},
    {"flux", "FLUX.1, 1024 x 1024", 4096, 512, 24, 128},
    {"sd3.5", "Stable Diffusion 3.5 Large, 1024 x 1024", 4096, 333, 38, 64},
    {"wan480", "Wan 2.1 14B, 480p, 81 frames", 32760, 0, 40, 128},
    {"wan720", "Wan 2.1 14B, 720p, 81 frames", 75600, 0, 40, 128},
    {"h3", "H3, video", 38051, 0, 56, 128},
    {"hunyuan", "HunyuanVideo, 720p, 129 frames", 118800, 256, 24, 128},
};

}  // namespace

std::vector<int64_t> CallShape::QueryShape() const {
  const int64_t tokens = image_tokens + (image_queries_only ? 0 : text_tokens);
  return {batch, tokens, num_heads, head_dim};
}

std::vector<int64_t> CallShape::KeyShape() const {
  return {batch, image_tokens + text_tokens, num_kv_heads, head_dim};
}

v1::SequenceLayout CallShape::Layout() const {
  v1::SequenceLayout layout;
  layout.set_text_tokens(text_tokens);
  layout.set_order(order);
  layout.set_image_queries_only(image_queries_only);
  layout.mutable_valid_text_tokens()->Add(valid_text_tokens.begin(),
                                          valid_text_tokens.end());
  return layout;
}

std::string CallShape::Text() const {
  std::string text =
      absl::StrCat(image_tokens, " image + ", text_tokens, " text tokens");
  if (!valid_text_tokens.empty()) {
    absl::StrAppend(&text, " (", absl::StrJoin(valid_text_tokens, ", "),
                    " valid)");
  }
  absl::StrAppend(&text, ", ", num_heads, " heads");
  if (num_kv_heads != num_heads) {
    absl::StrAppend(&text, " (", num_kv_heads, " key/value)");
  }
  absl::StrAppend(&text, ", head dim ", head_dim);
  if (batch != 1) absl::StrAppend(&text, ", batch ", batch);
  const std::string_view name = Name(dtype);
  absl::StrAppend(&text, ", ", absl::string_view(name.data(), name.size()));
  return text;
}

CallShape NamedShape::Shape() const {
  return {.image_tokens = image_tokens,
          .text_tokens = text_tokens,
          .num_heads = num_heads,
          .num_kv_heads = num_heads,
          .head_dim = head_dim};
}

std::span<const NamedShape> NamedShapes() { return kShapes; }

const NamedShape* FindNamedShape(std::string_view name) {
  for (const NamedShape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

}  // namespace ithaca::client
