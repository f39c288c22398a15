#ifndef ITHACA_KERNELS_COPY_TASK_H_
#define ITHACA_KERNELS_COPY_TASK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/fast_divider.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/task_list.h"

// A CopyJob as a GPU runs it: tile i of a task is its vectors from
// i * kVectorsPerTile on, one in kThreadsPerBlock for each thread.

namespace ithaca::kernels {

// Vectors that a thread has in flight at a time.
inline constexpr int kVectorsPerThread = 4;
inline constexpr int kVectorsPerTile = kThreadsPerBlock * kVectorsPerThread;

// Vector i of a copy: column i % n of token i / n, n = vectors_per_token.
struct CopyTask {
  const char* src = nullptr;
  char* dst = nullptr;
  int64_t src_token_stride = 0;  // strides in bytes
  int64_t src_batch_stride = 0;
  int64_t dst_token_stride = 0;
  int64_t dst_batch_stride = 0;
  FastDivider vectors_per_token;
  FastDivider tokens;  // of a batch element
  uint32_t num_vectors = 0;
  // 16, 8, 4 or 2: the widest that bases, strides and rows are aligned to.
  uint32_t vector_bytes = 16;

  // Whether it writes into rows that have room for others' heads; see TaskList.
  bool writes_apart() const {
    return tokens.divisor() > 1 &&
           dst_token_stride !=
               int64_t{vectors_per_token.divisor()} * vector_bytes;
  }

  uint32_t num_tiles() const {
    return (num_vectors + kVectorsPerTile - 1) / kVectorsPerTile;
  }
};

struct VectorOffsets {
  int64_t src = 0;  // bytes from the task's src
  int64_t dst = 0;
};

ITHACA_HOST_DEVICE_INLINE VectorOffsets LocateVector(const CopyTask& task,
                                                     uint32_t vector_bytes,
                                                     uint32_t index) {
  const uint32_t row = task.vectors_per_token.Divide(index);
  const uint32_t column = index - row * task.vectors_per_token.divisor();
  const uint32_t b = task.tokens.Divide(row);
  const uint32_t t = row - b * task.tokens.divisor();
  const int64_t within = int64_t{column} * vector_bytes;
  return {b * task.src_batch_stride + t * task.src_token_stride + within,
          b * task.dst_batch_stride + t * task.dst_token_stride + within};
}

// A job's tasks: one, or several where it has 2^31 elements or more; none when
// it is empty.
void ForEachTask(const LayoutParams& params, const CopyJob& job,
                 absl::FunctionRef<void(const CopyTask&)> visit);

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_COPY_TASK_H_
