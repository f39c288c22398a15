#include "tests/bench/model_shapes.h"

#include <cmath>
#include <cstdint>
#include <vector>

namespace ithaca::bench {

namespace {

AttentionShape Shape(int64_t image, int64_t text, int64_t heads) {
  AttentionShape shape;
  shape.dtype = DataType::kBFloat16;
  shape.image_tokens = image;
  shape.text_tokens = text;
  shape.valid_text_tokens = {text};
  shape.num_heads = heads;
  shape.num_kv_heads = heads;
  shape.head_dim = 128;
  return shape;
}

}  // namespace

const std::vector<ModelShape>& ModelShapes() {
  static const auto* const shapes =
      new std::vector<ModelShape>{{"Wan720", Shape(75600, 0, 40)},
                                  {"H3", Shape(38051, 0, 56)},
                                  {"Wan480", Shape(32760, 0, 40)},
                                  {"FLUX", Shape(4096, 512, 24)}};
  return *shapes;
}

AttentionOptions ModelOptions(const AttentionShape& shape,
                              CommunicationPrecision precision,
                              HeadSchedule schedule) {
  AttentionOptions options;
  options.softmax_scale = 1 / std::sqrt(static_cast<double>(shape.head_dim));
  options.precision = precision;
  options.schedule = schedule;
  return options;
}

}  // namespace ithaca::bench
