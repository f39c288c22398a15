#ifndef ITHACA_WORKER_RANK_TENSORS_H_
#define ITHACA_WORKER_RANK_TENSORS_H_

#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"

// How many bytes a rank's parts of a call's tensors are, and where they lie.
// Pure; what a rank's part is, the plan says.

namespace ithaca {

// Bytes of a rank's parts, all batch elements together.
struct RankTensorBytes {
  int64_t image_query = 0;  // [B, S_r, Hq, D]; and image output
  int64_t image_key = 0;    // [B, S_r, Hkv, D]; and image value
  int64_t text_query = 0;   // [B, T, Hq, D], 0 if image_queries_only; and text
                            // output
  int64_t text_key = 0;     // [B, T, Hkv, D]; and text value

  int64_t inputs() const {
    return image_query + text_query + 2 * (image_key + text_key);
  }
};

RankTensorBytes BytesOfRank(const SequenceParallelPlan& plan, int rank);

struct ByteRange {
  int64_t begin = 0;
  int64_t size = 0;

  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

// A rank's output lies as [B, S_r, Hq, D], then, with_text, [B, T, Hq, D].
// These ranges of it, one after the other, are in the order of the caller's
// tensor: for each batch element its image rows, and before or after them its
// text rows. None is empty, and none begins where the one before it ends.
std::vector<ByteRange> OutputInTokenOrder(const SequenceParallelPlan& plan,
                                          int rank, bool with_text);

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_TENSORS_H_
