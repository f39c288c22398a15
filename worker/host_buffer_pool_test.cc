#include "worker/host_buffer_pool.h"

#include <cstring>
#include <memory>
#include <optional>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

TEST(HostBufferPoolTest, ABufferIsAsLargeAsAskedAndWritable) {
  HostBufferPool pool;
  auto buffer = pool.Take(1000);
  ASSERT_TRUE(buffer.ok());
  EXPECT_GE((*buffer)->capacity(), 1000);
  std::memset((*buffer)->data(), 1, 1000);
  EXPECT_TRUE(pool.Take(0).ok());
}

TEST(HostBufferPoolTest, AReturnedBufferIsUsedAgain) {
  HostBufferPool pool;
  const char* first = (*pool.Take(1000))->data();
  EXPECT_EQ((*pool.Take(900))->data(), first);
}

TEST(HostBufferPoolTest, BuffersInUseAreNotShared) {
  HostBufferPool pool;
  auto a = pool.Take(1000), b = pool.Take(1000);
  EXPECT_NE((*a)->data(), (*b)->data());
}

TEST(HostBufferPoolTest, TheSmallestThatFitsIsTaken) {
  HostBufferPool pool;
  const char* large = nullptr;
  const char* small = nullptr;
  {
    auto a = pool.Take(100000), b = pool.Take(1000);
    large = (*a)->data();
    small = (*b)->data();
  }
  auto again_small = pool.Take(500);
  auto again_large = pool.Take(50000);
  EXPECT_EQ((*again_small)->data(), small);
  EXPECT_EQ((*again_large)->data(), large);
}

TEST(HostBufferPoolTest, OnlyTheLargestAreKept) {
  HostBufferPool pool(nullptr, 1);
  const char* large = nullptr;
  {
    auto a = pool.Take(100000), b = pool.Take(1000);
    large = (*a)->data();
  }
  EXPECT_EQ((*pool.Take(10))->data(), large);
  EXPECT_EQ((*pool.Take(10))->capacity(), 100000);
}

// So many bytes at most, of ordinary memory.
class LimitedMemory : public PinnedMemory {
 public:
  explicit LimitedMemory(int64_t limit) : limit_(limit) {}
  char* Allocate(int64_t bytes) override {
    return bytes > limit_ ? nullptr : (++allocated, new char[bytes]);
  }
  void Free(char* memory) override {
    ++freed;
    delete[] memory;
  }

  int allocated = 0, freed = 0;

 private:
  const int64_t limit_;
};

TEST(HostBufferPoolTest, BuffersArePinnedOnceWhereThatIsPossible) {
  const auto memory = std::make_shared<LimitedMemory>(1000);
  {
    HostBufferPool pool(memory);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE((*pool.Take(900))->is_pinned());
    auto large = *pool.Take(1001);
    EXPECT_FALSE(large->is_pinned());
    std::memset(large->data(), 1, 1001);
    EXPECT_EQ(memory->allocated, 1);
    EXPECT_EQ(memory->freed, 0);
  }
  EXPECT_EQ(memory->freed, 1);
}

TEST(HostBufferPoolTest, AnImpossibleSizeIsResourceExhausted) {
  HostBufferPool pool;
  EXPECT_EQ(pool.Take(int64_t{1} << 62).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(HostBufferPoolTest, ABufferOutlivesThePool) {
  std::optional<HostBufferPool> pool(std::in_place);
  auto buffer = *pool->Take(1000);
  pool.reset();
  std::memset(buffer->data(), 1, 1000);
}

}  // namespace
}  // namespace ithaca
