#ifndef ITHACA_KERNELS_TASK_LIST_H_
#define ITHACA_KERNELS_TASK_LIST_H_

#include <algorithm>
#include <cstdint>

#include "kernels/host_device.h"

// Jobs as a GPU runs them: tasks, with strides in bytes, divisions prepared and
// 32-bit indices, packed into the parameters of a launch. Pure host code and
// index math, tested without a GPU. See copy_task.h and row_task.h.

namespace ithaca::kernels {

inline constexpr int kThreadsPerBlock = 256;

// Tasks of one launch, passed by value as kernel parameters.
template <typename Task>
struct TaskList {
  static constexpr int kCapacity = 64;

  Task tasks[kCapacity] = {};
  uint32_t first_tile[kCapacity] = {};
  int num_tasks = 0;
  uint32_t num_tiles = 0;

  bool full() const { return num_tasks == kCapacity; }

  // REQUIRES: not full().
  void Add(const Task& task, uint32_t tiles) {
    tasks[num_tasks] = task;
    first_tile[num_tasks] = num_tiles;
    ++num_tasks;
    num_tiles += tiles;
  }

  // The task of a tile. REQUIRES: tile < num_tiles.
  ITHACA_HOST_DEVICE_INLINE int Find(uint32_t tile) const {
    int low = 0;
    int high = num_tasks;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_tile[middle] <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
};

// Cuts a block of heads into parts of fewer than 2^31 elements, whose vectors
// and rows 32 bits can count: part(b, t, h, batch, tokens, heads), first index
// and size of each dimension. Nothing is called for an empty block.
template <typename Part>
void ForEachPart(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim,
                 Part&& part) {
  constexpr int64_t kLimit = (int64_t{1} << 31) - 1;
  if (batch == 0 || tokens == 0 || heads == 0) return;
  // A dimension is cut only when those inside it are whole.
  const int64_t most_heads = std::min(heads, kLimit / head_dim);
  const int64_t most_tokens =
      most_heads < heads ? 1 : std::min(tokens, kLimit / (heads * head_dim));
  const int64_t most_batch =
      most_heads < heads || most_tokens < tokens
          ? 1
          : std::min(batch, kLimit / (tokens * heads * head_dim));
  for (int64_t b = 0; b < batch; b += most_batch) {
    for (int64_t t = 0; t < tokens; t += most_tokens) {
      for (int64_t h = 0; h < heads; h += most_heads) {
        part(b, t, h, std::min(most_batch, batch - b),
             std::min(most_tokens, tokens - t),
             std::min(most_heads, heads - h));
      }
    }
  }
}

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_TASK_LIST_H_
