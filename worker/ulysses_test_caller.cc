#include "worker/ulysses_test_caller.h"

#include "tests/oracle/attention_oracle.h"

namespace ithaca {

AttentionOptions DefaultOptions(const AttentionShape& shape) {
  AttentionOptions options;
  options.softmax_scale = oracle::DefaultScale(shape);
  options.schedule = HeadSchedule::kFused;
  options.kernel = AttentionKernelKind::kMath;
  return options;
}

}  // namespace ithaca
