#ifndef ITHACA_TESTS_BENCH_MODEL_SHAPES_H_
#define ITHACA_TESTS_BENCH_MODEL_SHAPES_H_

#include <vector>

#include "core/attention_call.h"

namespace ithaca::bench {

struct ModelShape {
  const char* name;
  AttentionShape shape;  // bfloat16
};

// The calls that groups of several GPUs are measured with: "Wan720", "H3",
// "Wan480", "FLUX".
const std::vector<ModelShape>& ModelShapes();

// 1/sqrt(D) as scale; the best kernel.
AttentionOptions ModelOptions(const AttentionShape& shape,
                              CommunicationPrecision precision,
                              HeadSchedule schedule);

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_MODEL_SHAPES_H_
