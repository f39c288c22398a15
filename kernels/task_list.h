#ifndef ITHACA_KERNELS_TASK_LIST_H_
#define ITHACA_KERNELS_TASK_LIST_H_

#include <algorithm>
#include <cstdint>

#include "kernels/fast_divider.h"
#include "kernels/host_device.h"

// Jobs as a GPU runs them: tasks, with strides in bytes, divisions prepared and
// 32-bit indices, packed into the parameters of a launch. Pure host code and
// index math, tested without a GPU. See copy_task.h and row_task.h.

namespace ithaca::kernels {

inline constexpr int kThreadsPerBlock = 256;

// Tasks of one launch, passed by value as kernel parameters.
//
// A task is done tile by tile, then the next one, unless tasks take turns: tile
// 0 of each, then tile 1 of each. Those that write their heads into rows of one
// tensor do: blocks that run at the same time are then at the same tokens, and
// write whole rows together where one task's tiles would touch a part of each.
template <typename Task>
struct TaskList {
  static constexpr int kCapacity = 64;

  // Tasks that take turns; one alone is a round too.
  struct Round {
    uint32_t first_tile = 0;
    uint32_t first_task = 0;
    FastDivider num_tasks;
  };

  // A tile of the launch, seen from its task. Where `exists` is false, the
  // task is through while others of its round are not.
  struct Place {
    uint32_t task = 0;
    uint32_t tile = 0;
    bool exists = false;
  };

  Task tasks[kCapacity] = {};
  uint32_t tiles_of[kCapacity] = {};
  Round rounds[kCapacity] = {};
  int num_tasks = 0;
  int num_alone = 0;  // the first of the tasks; the others take turns
  int num_rounds = 0;
  uint32_t num_tiles = 0;  // of all rounds; set by Arrange

  bool full() const { return num_tasks == kCapacity; }

  // REQUIRES: not full(); tiles >= 1.
  void Add(const Task& task, uint32_t tiles, bool takes_turns) {
    int at = num_tasks++;
    // Largest first among those that take turns.
    const int first = takes_turns ? num_alone : num_alone++;
    for (; at > first && (!takes_turns || tiles_of[at - 1] < tiles); --at) {
      tasks[at] = tasks[at - 1];
      tiles_of[at] = tiles_of[at - 1];
    }
    tasks[at] = task;
    tiles_of[at] = tiles;
  }

  // Makes the rounds, after the last Add. The smallest task of one has at least
  // three quarters of the largest one's tiles, so that few tiles do not exist.
  void Arrange() {
    num_rounds = 0;
    num_tiles = 0;
    for (int first = 0; first < num_tasks;) {
      int end = first + 1;
      while (first >= num_alone && end < num_tasks &&
             4 * uint64_t{tiles_of[end]} >= 3 * uint64_t{tiles_of[first]}) {
        ++end;
      }
      rounds[num_rounds++] = {num_tiles, static_cast<uint32_t>(first),
                              FastDivider(end - first)};
      num_tiles += static_cast<uint32_t>(end - first) * tiles_of[first];
      first = end;
    }
  }

  // REQUIRES: tile < num_tiles.
  ITHACA_HOST_DEVICE_INLINE Place Find(uint32_t tile) const {
    int low = 0;
    int high = num_rounds;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (rounds[middle].first_tile <= tile) {
        low = middle;
      } else {
        high = middle;
      }
    }
    const Round& round = rounds[low];
    const uint32_t turn = tile - round.first_tile;
    Place place;
    place.tile = round.num_tasks.Divide(turn);
    place.task =
        round.first_task + turn - place.tile * round.num_tasks.divisor();
    place.exists = place.tile < tiles_of[place.task];
    return place;
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
