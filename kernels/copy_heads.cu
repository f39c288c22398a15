#include <cuda_runtime.h>

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/copy_task.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/layout.h"
#include "kernels/layout_cuda.h"
#include "kernels/streaming_access.cuh"
#include "kernels/task_list.h"

namespace ithaca::kernels {

namespace {

// kWhole: the tile has no vector past the task's end.
template <typename Vector, bool kWhole>
__device__ __forceinline__ void CopyTile(const CopyTask& task, uint32_t first) {
  Vector data[kVectorsPerThread];
  int64_t destination[kVectorsPerThread];
  // All loads are on their way before the first store waits for one.
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    const uint32_t index = first + i * kThreadsPerBlock;
    const VectorOffsets at = LocateVector(task, sizeof(Vector), index);
    destination[i] = at.dst;
    if (kWhole || index < task.num_vectors) {
      data[i] = LoadOnce(reinterpret_cast<const Vector*>(task.src + at.src));
    }
  }
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    if (kWhole || first + i * kThreadsPerBlock < task.num_vectors) {
      StoreOnce(reinterpret_cast<Vector*>(task.dst + destination[i]), data[i]);
    }
  }
}

template <typename Vector>
__device__ __forceinline__ void CopyTile(const CopyTask& task, uint32_t tile) {
  const uint32_t first = tile * kVectorsPerTile + threadIdx.x;
  if ((tile + 1) * kVectorsPerTile <= task.num_vectors) {
    CopyTile<Vector, true>(task, first);
  } else {
    CopyTile<Vector, false>(task, first);
  }
}

// Five blocks a multiprocessor: 80 KiB of loads in flight on it, with the
// registers that four vectors and their addresses take.
__global__ void __launch_bounds__(kThreadsPerBlock, 5)
    CopyHeadsKernel(const __grid_constant__ TaskList<CopyTask> list) {
  for (uint32_t tile = blockIdx.x; tile < list.num_tiles; tile += gridDim.x) {
    const auto place = list.Find(tile);
    if (!place.exists) continue;
    const CopyTask& task = list.tasks[place.task];
    const uint32_t own_tile = place.tile;
    switch (task.vector_bytes) {
      case 16:
        CopyTile<uint4>(task, own_tile);
        break;
      case 8:
        CopyTile<uint2>(task, own_tile);
        break;
      case 4:
        CopyTile<uint32_t>(task, own_tile);
        break;
      default:
        CopyTile<uint16_t>(task, own_tile);
    }
  }
}

}  // namespace

cudaError_t CopyHeadsCuda(const LayoutParams& params,
                          absl::Span<const CopyJob> jobs, cudaStream_t stream,
                          const CudaLaunchOptions& options) {
  const auto launch = [&](const TaskList<CopyTask>& list) {
    return LaunchTiles(CopyHeadsKernel, list, stream, options);
  };
  TaskBatcher<CopyTask, decltype(launch)> batcher(launch);
  for (const CopyJob& job : jobs) {
    ForEachTask(params, job, [&](const CopyTask& task) {
      batcher.Add(task, task.num_tiles(), task.writes_apart());
    });
  }
  return batcher.Finish();
}

}  // namespace ithaca::kernels
