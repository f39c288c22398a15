#ifndef ITHACA_KERNELS_ROW_KERNELS_CUH_
#define ITHACA_KERNELS_ROW_KERNELS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/types/span.h"
#include "core/attention_call.h"
#include "core/data_type.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/layout.h"
#include "kernels/packed_elements.cuh"
#include "kernels/row_task.h"

// What both directions share: how threads take rows, and how kernels are
// picked.

namespace ithaca::kernels {

// A vector of 16 bytes of elements, and its codes: 8 or 4.
template <DataType T>
struct RowVector {
  static constexpr int kElements = 16 / static_cast<int>(ByteSize(T));
  static constexpr int kPerWord = PackedElements<T>::kPerWord;
  static constexpr int kCodeWords = kElements / 4;
};

// A thread's rows and vectors of a tile; see RowGeometry.
template <int kLanes, int kVectors, int kRows>
struct RowSlots {
  static constexpr int kGroups = kThreadsPerBlock / kLanes;
  static constexpr int kRowsPerTile = kGroups * kRows;

  // The thread's row `r` of a tile, an index into the task's rows.
  __device__ __forceinline__ static uint32_t Row(uint32_t tile, int r) {
    return tile * kRowsPerTile + r * kGroups + threadIdx.x / kLanes;
  }
  // The thread's vector `v` of its rows.
  __device__ __forceinline__ static uint32_t Column(int v) {
    return v * kLanes + threadIdx.x % kLanes;
  }
};

// Of a narrow kernel: a warp takes a row.
using NarrowSlots = RowSlots<32, 1, 1>;

// Elements of a row that a thread of a narrow kernel takes, 32 apart.
inline constexpr int kNarrowElements =
    static_cast<int>(AttentionShape::kMaxHeadDim / 32);

// Calls fn.template operator()<kLanes, kVectors, kRows>() for a geometry that
// WideGeometry can give of rows of T.
template <DataType T, typename Function>
cudaError_t DispatchGeometry(const RowGeometry& geometry,
                             const Function& function) {
  if (geometry.vectors == 1) return function.template operator()<4, 1, 2>();
  switch (geometry.lanes) {
    case 4:
      return function.template operator()<4, 2, 1>();
    case 8:
      return function.template operator()<8, 2, 1>();
    case 16:
      return function.template operator()<16, 2, 1>();
    default:
      break;
  }
  // Rows of more than 512 bytes: float32 with D > 128.
  if constexpr (T == DataType::kFloat32) {
    return function.template operator()<32, 2, 1>();
  }
  return cudaErrorInvalidValue;
}

// Tiles of a task whose rows are shared like this.
inline uint32_t RowTiles(const RowTask& task, const RowGeometry& geometry) {
  const auto rows = static_cast<uint32_t>(geometry.rows_per_tile());
  return (task.num_rows + rows - 1) / rows;
}

// Launches the tasks of all jobs: wide(list) and narrow(list) launch those of
// their kind; wide_tiles(task) says how many tiles a wide one has;
// writes_elements: rather than codes.
template <typename Job, typename Wide, typename WideTiles, typename Narrow>
cudaError_t LaunchRows(const LayoutParams& params, absl::Span<const Job> jobs,
                       bool writes_elements, const Wide& wide,
                       const WideTiles& wide_tiles, const Narrow& narrow) {
  TaskBatcher<RowTask, Wide> wide_tasks(wide);
  TaskBatcher<RowTask, Narrow> narrow_tasks(narrow);
  for (const Job& job : jobs) {
    ForEachTask(params, job, [&](const RowTask& task) {
      const bool takes_turns = writes_elements && task.rows_apart;
      if (task.wide) {
        wide_tasks.Add(task, wide_tiles(task), takes_turns);
      } else {
        narrow_tasks.Add(task, RowTiles(task, RowGeometry()), takes_turns);
      }
    });
  }
  const cudaError_t wide_error = wide_tasks.Finish();
  const cudaError_t narrow_error = narrow_tasks.Finish();
  return wide_error != cudaSuccess ? wide_error : narrow_error;
}

// Calls fn.template operator()<T>() for a dtype.
template <typename Function>
cudaError_t DispatchDataType(DataType dtype, const Function& function) {
  switch (dtype) {
    case DataType::kFloat16:
      return function.template operator()<DataType::kFloat16>();
    case DataType::kBFloat16:
      return function.template operator()<DataType::kBFloat16>();
    case DataType::kFloat32:
      break;
  }
  return function.template operator()<DataType::kFloat32>();
}

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_ROW_KERNELS_CUH_
