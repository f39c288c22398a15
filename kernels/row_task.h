#ifndef ITHACA_KERNELS_ROW_TASK_H_
#define ITHACA_KERNELS_ROW_TASK_H_

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/fast_divider.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/task_list.h"

// A QuantizeJob or DequantizeJob as a GPU runs it: tile i of a task is its rows
// from i * RowGeometry::rows_per_tile() on.

namespace ithaca::kernels {

// Row i is head i % n of token i / n, n = heads. `elements` is the tensor of
// the job's dtype, `codes` and `scales` the dense 8-bit side.
struct RowTask {
  char* elements = nullptr;  // only read when quantising
  uint8_t* codes = nullptr;  // only read when dequantising
  float* scales = nullptr;   // only read when dequantising
  int64_t token_stride = 0;  // of elements, in bytes
  int64_t batch_stride = 0;
  FastDivider heads;
  FastDivider tokens;  // of a batch element
  uint32_t num_rows = 0;
  // Whether the tensor's token rows have room for others' heads; see TaskList.
  bool rows_apart = false;
  // Every row is whole 16-byte vectors at 16-byte addresses, and its codes are
  // aligned to the codes of a vector.
  bool wide = false;
};

// Bytes from the task's elements to row `index`.
ITHACA_HOST_DEVICE_INLINE int64_t LocateRow(const RowTask& task,
                                            uint32_t row_bytes,
                                            uint32_t index) {
  const uint32_t token = task.heads.Divide(index);
  const uint32_t h = index - token * task.heads.divisor();
  const uint32_t b = task.tokens.Divide(token);
  const uint32_t t = token - b * task.tokens.divisor();
  return b * task.batch_stride + t * task.token_stride + int64_t{h} * row_bytes;
}

// How threads share rows. Wide: `lanes` neighbouring threads take one row, each
// of them `vectors` vectors, lane and lane + lanes; and each takes
// `rows_per_thread` rows, so that two loads are in flight: with eight blocks on
// a multiprocessor that is enough. Narrow: a warp takes one row, element by
// element.
struct RowGeometry {
  int lanes = 32;
  int vectors = 0;  // 0: narrow
  int rows_per_thread = 1;

  constexpr int rows_per_tile() const {
    return kThreadsPerBlock / lanes * rows_per_thread;
  }
  friend bool operator==(const RowGeometry&, const RowGeometry&) = default;
};

// The wide geometry for rows of this many vectors, 1 to 64.
constexpr RowGeometry WideGeometry(int64_t vectors_per_row) {
  RowGeometry geometry;
  geometry.lanes = 4;
  while (int64_t{2} * geometry.lanes < vectors_per_row) geometry.lanes *= 2;
  geometry.vectors = vectors_per_row > geometry.lanes ? 2 : 1;
  geometry.rows_per_thread = 2 / geometry.vectors;
  return geometry;
}

// A job's tasks: one, or several where it has 2^31 elements or more; none when
// it is empty.
void ForEachTask(const LayoutParams& params, const QuantizeJob& job,
                 absl::FunctionRef<void(const RowTask&)> visit);
void ForEachTask(const LayoutParams& params, const DequantizeJob& job,
                 absl::FunctionRef<void(const RowTask&)> visit);

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_ROW_TASK_H_
