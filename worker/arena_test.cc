#include "worker/arena.h"

#include <cstdint>
#include <cstring>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/cpu_device.h"

namespace ithaca {
namespace {

TEST(ArenaTest, HandsOutAlignedDisjointMemory) {
  CpuDevice device;
  Arena arena(&device);
  ASSERT_TRUE(
      arena.Reset(Arena::AlignedSize(1) + Arena::AlignedSize(300)).ok());
  char* first = static_cast<char*>(arena.Take(1));
  char* second = static_cast<char*>(arena.Take(300));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 256, 0);
  EXPECT_EQ(second - first, 256);
  std::memset(first, 1, 1);
  std::memset(second, 2, 300);
  EXPECT_EQ(*first, 1);
}

TEST(ArenaTest, KeepsItsBlockForSmallerCalls) {
  CpuDevice device;
  Arena arena(&device);
  ASSERT_TRUE(arena.Reset(4096).ok());
  void* block = arena.Take(4096);
  for (int64_t bytes : {1, 512, 4096, 0}) {
    ASSERT_TRUE(arena.Reset(bytes).ok());
    EXPECT_EQ(arena.capacity(), 4096);
  }
  EXPECT_EQ(arena.Take(16), block);
}

TEST(ArenaTest, GrowsToExactlyTheLargestCall) {
  CpuDevice device;
  Arena arena(&device);
  ASSERT_TRUE(arena.Reset(1024).ok());
  ASSERT_TRUE(arena.Reset(10240).ok());
  EXPECT_EQ(arena.capacity(), 10240);
}

TEST(ArenaTest, IsUsableAfterAFailedGrowth) {
  CpuDevice device;
  Arena arena(&device);
  ASSERT_TRUE(arena.Reset(1024).ok());
  EXPECT_EQ(arena.Reset(int64_t{1} << 60).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(arena.capacity(), 0);
  ASSERT_TRUE(arena.Reset(2048).ok());
  std::memset(arena.Take(2048), 0, 2048);
}

TEST(ArenaTest, RoundsSizesUpToTheAlignment) {
  EXPECT_EQ(Arena::AlignedSize(0), 0);
  EXPECT_EQ(Arena::AlignedSize(1), 256);
  EXPECT_EQ(Arena::AlignedSize(256), 256);
  EXPECT_EQ(Arena::AlignedSize(257), 512);
}

}  // namespace
}  // namespace ithaca
