#ifndef ITHACA_WORKER_RANK_TENSORS_H_
#define ITHACA_WORKER_RANK_TENSORS_H_

#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"

// Where a rank's parts of a call's tensors lie. Pure; what a rank's part is,
// the plan says.

namespace ithaca {

enum class TensorRole : uint8_t { kQuery, kKey, kValue, kOutput };

// [B, tokens, heads, D] of all ranks' tokens.
int64_t WholeTensorBytes(const AttentionShape& shape, TensorRole role);

// Rows of such a tensor, in bytes from its start: `count` blocks of `size`,
// one for each batch element, `stride` apart.
struct RowBlocks {
  int64_t begin = 0;
  int64_t size = 0;
  int64_t stride = 0;
  int64_t count = 0;

  int64_t bytes() const { return size * count; }
  bool contiguous() const { return count <= 1 || size == stride; }
  friend bool operator==(const RowBlocks&, const RowBlocks&) = default;
};

RowBlocks ImageRows(const SequenceParallelPlan& plan, int rank,
                    TensorRole role);
// All text rows; without any, blocks of size 0.
RowBlocks TextRows(const SequenceParallelPlan& plan, TensorRole role);

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
