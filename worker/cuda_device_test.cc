#include "worker/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ithaca {
namespace {

using ::testing::MatchesRegex;

std::unique_ptr<CudaDevice> Open() { return CudaDevice::Open(0).value(); }

std::vector<uint32_t> Numbers(size_t count) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 7u);
  return numbers;
}

TEST(CudaDeviceTest, NamesItself) {
  const auto device = Open();
  EXPECT_EQ(device->name(), "cuda:0");
  EXPECT_THAT(device->uuid(),
              MatchesRegex("GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-"
                           "[0-9a-f]{4}-[0-9a-f]{12}"));
  EXPECT_GE(device->compute_capability(), 70);
  // The GPU's own, not the object's.
  EXPECT_EQ(Open()->uuid(), device->uuid());
}

TEST(CudaDeviceTest, AGpuThatIsNotThereIsRefused) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  for (const int ordinal : {-1, count}) {
    EXPECT_EQ(CudaDevice::Open(ordinal).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(CudaDeviceTest, CopiesOfAnySizeComeBackAsTheyWere) {
  const auto device = Open();
  // Around the size of the pinned buffers, and several of them.
  for (const size_t count : {0UL, 1UL, 1000UL, (1UL << 20) - 1, 1UL << 20,
                             (1UL << 20) + 1, 5'000'001UL}) {
    const std::vector<uint32_t> sent = Numbers(count);
    std::vector<uint32_t> received(count, 0);
    const auto bytes = static_cast<int64_t>(4 * count);
    void* const memory = device->Allocate(bytes).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0);
    ASSERT_TRUE(device->CopyFromHost(memory, sent.data(), bytes).ok());
    ASSERT_TRUE(device->CopyToHost(received.data(), memory, bytes).ok());
    EXPECT_EQ(received, sent) << count;
    device->Free(memory);
  }
}

TEST(CudaDeviceTest, HostMemoryMayBeReusedWhenACopyReturns) {
  const auto device = Open();
  std::vector<uint32_t> numbers = Numbers(3'000'000);
  const std::vector<uint32_t> expected = numbers;
  const auto bytes = static_cast<int64_t>(4 * numbers.size());
  void* const memory = device->Allocate(bytes).value();
  ASSERT_TRUE(device->CopyFromHost(memory, numbers.data(), bytes).ok());
  std::fill(numbers.begin(), numbers.end(), 0);
  ASSERT_TRUE(device->CopyToHost(numbers.data(), memory, bytes).ok());
  EXPECT_EQ(numbers, expected);
  device->Free(memory);
}

TEST(CudaDeviceTest, ZeroesInOrderWithCopies) {
  const auto device = Open();
  std::vector<uint32_t> numbers = Numbers(1000);
  void* const memory = device->Allocate(4000).value();
  ASSERT_TRUE(device->CopyFromHost(memory, numbers.data(), 4000).ok());
  ASSERT_TRUE(device->Zero(static_cast<char*>(memory) + 400, 400).ok());
  ASSERT_TRUE(device->CopyToHost(numbers.data(), memory, 4000).ok());
  EXPECT_EQ(numbers[99], 106);
  EXPECT_EQ(numbers[100], 0);
  EXPECT_EQ(numbers[199], 0);
  EXPECT_EQ(numbers[200], 207);
  device->Free(memory);
}

TEST(CudaDeviceTest, OutOfMemoryIsSaidAndTheNextAllocationIsRight) {
  const auto device = Open();
  int reclaimed = 0;
  device->SetReclaim([&reclaimed] { ++reclaimed; });
  const auto too_much = device->Allocate(int64_t{1} << 50);
  EXPECT_EQ(too_much.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(reclaimed, 1);
  const auto some = device->Allocate(1024);
  ASSERT_TRUE(some.ok()) << some.status();
  EXPECT_TRUE(device->Zero(*some, 1024).ok());
  EXPECT_TRUE(device->Synchronize().ok());
  device->Free(*some);
}

TEST(CudaDeviceTest, MarksOutliveOneSynchronize) {
  const auto device = Open();
  void* const memory = device->Allocate(int64_t{1} << 30).value();
  for (int round = 0; round < 3; ++round) {
    const DeviceMark before = device->Mark();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(device->Zero(memory, int64_t{1} << 30).ok());
    }
    const DeviceMark after = device->Mark();
    ASSERT_TRUE(device->Synchronize().ok());
    const double seconds = device->SecondsBetween(before, after);
    EXPECT_GT(seconds, 1e-4);
    EXPECT_LT(seconds, 10);
    device->Mark();
    EXPECT_EQ(device->SecondsBetween(before, after), seconds);
  }
  device->Free(memory);
}

// Holds the stream until it is told to go on.
struct Gate {
  std::atomic<bool> open{false};
  static void Wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
};

TEST(CudaDeviceTest, AFailingWaitCheckEndsAWait) {
  const auto device = Open();
  Gate gate;
  ASSERT_EQ(cudaLaunchHostFunc(device->stream(), Gate::Wait, &gate),
            cudaSuccess);
  int asked = 0;
  device->SetWaitCheck([&asked] {
    return ++asked < 10 ? absl::OkStatus()
                        : absl::UnavailableError("a peer is gone");
  });
  const absl::Status status = device->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "a peer is gone");
  gate.open = true;
  device->SetWaitCheck(nullptr);
  EXPECT_TRUE(device->Synchronize().ok());
}

TEST(CudaDeviceTest, WorksFromAnyOneThread) {
  const auto device = Open();
  std::thread([&device] {
    void* const memory = device->Allocate(16).value();
    uint32_t number = 5;
    EXPECT_TRUE(device->CopyFromHost(memory, &number, 4).ok());
    number = 0;
    EXPECT_TRUE(device->CopyToHost(&number, memory, 4).ok());
    EXPECT_EQ(number, 5);
    device->Free(memory);
  }).join();
}

}  // namespace
}  // namespace ithaca
