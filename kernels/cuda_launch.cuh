#ifndef ITHACA_KERNELS_CUDA_LAUNCH_CUH_
#define ITHACA_KERNELS_CUDA_LAUNCH_CUH_

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/layout_cuda.h"
#include "kernels/task_list.h"

namespace ithaca::kernels {

// Launches kernel(list, arguments...) over the list's tiles.
template <typename Kernel, typename Task, typename... Arguments>
cudaError_t LaunchTiles(Kernel kernel, const TaskList<Task>& list,
                        cudaStream_t stream, const CudaLaunchOptions& options,
                        Arguments... arguments) {
  uint32_t blocks = list.num_tiles;
  if (options.max_blocks_per_multiprocessor > 0) {
    int device = 0;
    int multiprocessors = 0;
    if (auto error = cudaGetDevice(&device); error != cudaSuccess) return error;
    if (auto error = cudaDeviceGetAttribute(
            &multiprocessors, cudaDevAttrMultiProcessorCount, device);
        error != cudaSuccess) {
      return error;
    }
    blocks = std::min(
        blocks, static_cast<uint32_t>(multiprocessors *
                                      options.max_blocks_per_multiprocessor));
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(kThreadsPerBlock);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, list, arguments...);
}

// Collects tasks and launches them, `launch(list)`, whenever the list is full
// and at the end.
template <typename Task, typename Launch>
class TaskBatcher {
 public:
  explicit TaskBatcher(Launch launch) : launch_(launch) {}

  void Add(const Task& task, uint32_t tiles, bool takes_turns) {
    if (list_.full()) Flush();
    list_.Add(task, tiles, takes_turns);
  }

  // The first error of all launches.
  cudaError_t Finish() {
    Flush();
    return error_;
  }

 private:
  void Flush() {
    if (list_.num_tasks == 0) return;
    list_.Arrange();
    const cudaError_t error = launch_(list_);
    if (error_ == cudaSuccess) error_ = error;
    list_ = {};
  }

  Launch launch_;
  TaskList<Task> list_;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_CUDA_LAUNCH_CUH_
