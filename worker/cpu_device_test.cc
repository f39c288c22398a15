#include "worker/cpu_device.h"

#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

TEST(CpuDeviceTest, AllocatesAlignedMemory) {
  CpuDevice device;
  for (int64_t bytes : {0, 1, 255, 256, 100000}) {
    absl::StatusOr<void*> memory = device.Allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % 256, 0);
    ASSERT_TRUE(device.Zero(*memory, bytes).ok());
    device.Free(*memory);
  }
  device.Free(nullptr);
}

TEST(CpuDeviceTest, RefusesSizesThatDoNotFit) {
  CpuDevice device;
  for (int64_t bytes :
       {int64_t{-1}, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::max() - 255, int64_t{1} << 60}) {
    EXPECT_EQ(device.Allocate(bytes).status().code(),
              absl::StatusCode::kResourceExhausted)
        << bytes;
  }
}

TEST(CpuDeviceTest, CopiesBytesBothWays) {
  CpuDevice device;
  const std::array<int, 3> source = {1, 2, 3};
  std::array<int, 3> there = {};
  std::array<int, 3> back = {};
  ASSERT_TRUE(device.CopyFromHost(there.data(), source.data(), 12).ok());
  ASSERT_TRUE(device.CopyToHost(back.data(), there.data(), 12).ok());
  EXPECT_THAT(back, ElementsAre(1, 2, 3));
  ASSERT_TRUE(device.Zero(back.data(), 12).ok());
  EXPECT_THAT(back, Each(0));
  EXPECT_TRUE(device.CopyFromHost(nullptr, nullptr, 0).ok());
}

TEST(CpuDeviceTest, RunsLayoutJobs) {
  CpuDevice device;
  // Two tokens of three heads of D = 2; heads 1 and 2 are taken.
  const std::vector<float> source = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  std::vector<float> heads(8);
  kernels::CopyJob job;
  job.src = {source.data() + 2, 6, 12};
  job.dst = {heads.data(), 4, 8};
  job.tokens = 2;
  job.heads = 2;
  ASSERT_TRUE(device.CopyHeads({DataType::kFloat32, 2}, {&job, 1}).ok());
  EXPECT_THAT(heads, ElementsAre(2, 3, 4, 5, 8, 9, 10, 11));
}

TEST(CpuDeviceTest, MarksMeasureTheTimeBetweenThem) {
  CpuDevice device;
  const DeviceMark from = device.Mark();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const DeviceMark to = device.Mark();
  ASSERT_TRUE(device.Synchronize().ok());
  EXPECT_GE(device.SecondsBetween(from, to), 0.005);
  EXPECT_EQ(device.SecondsBetween(from, from), 0.0);
}

}  // namespace
}  // namespace ithaca
