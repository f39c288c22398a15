#include "kernels/task_list.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace ithaca::kernels {
namespace {

TEST(TaskListTest, EveryTileOfEveryTaskHasItsPlace) {
  for (int count = 1; count <= TaskList<int>::kCapacity; ++count) {
    TaskList<int> list;
    std::vector<uint32_t> tiles;
    uint32_t sum = 0;
    for (int task = 0; task < count; ++task) {
      tiles.push_back(task * 7 % 9 + 1);
      sum += tiles.back();
      list.Add(task, tiles.back(), /*takes_turns=*/task % 4 != 0);
    }
    list.Arrange();
    EXPECT_EQ(list.full(), count == TaskList<int>::kCapacity);
    EXPECT_LE(3 * list.num_tiles, 4 * sum);
    std::set<std::pair<int, uint32_t>> found;
    for (uint32_t tile = 0; tile < list.num_tiles; ++tile) {
      const auto place = list.Find(tile);
      if (!place.exists) continue;
      const int task = list.tasks[place.task];
      EXPECT_LT(place.tile, tiles[task]);
      EXPECT_TRUE(found.emplace(task, place.tile).second);
    }
    EXPECT_EQ(found.size(), sum);
  }
}

// "a0b0": tile 0 of task a, then tile 0 of task b.
std::string OrderOfTiles(TaskList<char> list) {
  list.Arrange();
  std::string order;
  for (uint32_t tile = 0; tile < list.num_tiles; ++tile) {
    const auto place = list.Find(tile);
    order += list.tasks[place.task];
    order += static_cast<char>('0' + place.tile);
  }
  return order;
}

TEST(TaskListTest, TasksOfASizeTakeTurnsAndSmallOnesComeLast) {
  TaskList<char> list;
  list.Add('t', 1, true);  // a text's, beside three images'
  for (const char image : {'q', 'k', 'v'}) list.Add(image, 2, true);
  EXPECT_EQ(OrderOfTiles(list), "q0k0v0q1k1v1t0");
}

TEST(TaskListTest, OthersAreDoneOneAfterTheOtherAndFirst) {
  TaskList<char> list;
  list.Add('x', 2, true);
  list.Add('a', 1, false);
  list.Add('y', 2, true);
  list.Add('b', 2, false);
  EXPECT_EQ(OrderOfTiles(list), "a0b0b1x0y0x1y1");
}

}  // namespace
}  // namespace ithaca::kernels
