#include "worker/cuda_regions.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/plan_policy.h"
#include "core/sequence_parallel_plan.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/oracle/attention_oracle.h"
#include "tests/oracle/tensor_data.h"
#include "worker/cuda_device.h"
#include "worker/cuda_memory_exporter.h"
#include "worker/cuda_pinned_memory.h"
#include "worker/in_process_communicator.h"
#include "worker/rank_executor.h"
#include "worker/region_table.h"
#include "worker/shared_memory_test_object.h"
#include "worker/torch_cuda_attention_kernels.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

class CudaRegionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
      GTEST_SKIP() << "needs a GPU";
    }
    device_ = CudaDevice::Open(0).value();
    opener_ = MakeCudaRegionOpener(0, device_->uuid());
  }

  CudaAllocation Allocation(const CudaMemoryExporter& exporter,
                            uint64_t offset = 0) const {
    return {exporter.ipc_handle(), device_->uuid(), offset};
  }

  std::string Read(AttachedRegion* region, int64_t offset, int64_t bytes) {
    void* const memory = device_->Allocate(bytes).value();
    std::string read(static_cast<size_t>(bytes), '\0');
    EXPECT_TRUE(
        region->CopyToDevice(device_.get(), memory, offset, bytes).ok());
    EXPECT_TRUE(device_->CopyToHost(read.data(), memory, bytes).ok());
    device_->Free(memory);
    return read;
  }

  absl::Status Write(AttachedRegion* region, int64_t offset,
                     const std::string& bytes) {
    const auto size = static_cast<int64_t>(bytes.size());
    void* const memory = device_->Allocate(size).value();
    EXPECT_TRUE(device_->CopyFromHost(memory, bytes.data(), size).ok());
    const absl::Status status =
        region->CopyFromDevice(device_.get(), offset, memory, size);
    EXPECT_TRUE(device_->Synchronize().ok());
    device_->Free(memory);
    return status;
  }

  absl::Status OpenStatus(const CudaAllocation& memory, uint64_t byte_size) {
    return opener_->Open({1, byte_size, memory}).status();
  }

  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<RegionOpener> opener_;
};

TEST_F(CudaRegionsTest, AnotherProcesssMemoryIsReadAndWrittenInPlace) {
  CudaMemoryExporter exporter(1 << 20);
  std::string expected = exporter.Bytes();
  {
    auto region =
        opener_->Open({1, (1 << 20) - 4096, Allocation(exporter, 4096)});
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_EQ(Read(region->get(), 100, 70'000), expected.substr(4196, 70'000));
    ASSERT_TRUE(Write(region->get(), 5, "written").ok());
    expected.replace(4096 + 5, 7, "written");
    // By the GPU itself.
    ASSERT_TRUE(device_->Zero((*region)->device_memory() + 50, 30).ok());
    ASSERT_TRUE(device_->Synchronize().ok());
    expected.replace(4096 + 50, 30, std::string(30, '\0'));
  }
  EXPECT_TRUE(exporter.Bytes() == expected);
}

TEST_F(CudaRegionsTest, WhatCannotBeOpenedSaysWhy) {
  CudaMemoryExporter exporter(1 << 20);
  CudaAllocation memory = Allocation(exporter);
  EXPECT_TRUE(OpenStatus(memory, 1 << 20).ok());
  // An allocation may be larger than was asked for, but not so much.
  for (const auto& [offset, size] :
       {std::pair<uint64_t, uint64_t>{0, uint64_t{1} << 40},
        {uint64_t{1} << 40, 1},
        {1, ~uint64_t{0}},
        {~uint64_t{0}, 2}}) {
    EXPECT_EQ(OpenStatus(Allocation(exporter, offset), size).code(),
              absl::StatusCode::kInvalidArgument)
        << offset << " " << size;
  }
  memory.ipc_handle.pop_back();
  EXPECT_EQ(OpenStatus(memory, 1).code(), absl::StatusCode::kInvalidArgument);

  const auto expect_unreachable = [&](const CudaAllocation& unreachable,
                                      const char* why) {
    const absl::Status status = OpenStatus(unreachable, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  memory = Allocation(exporter);
  memory.device_uuid = "MIG-" + device_->uuid();
  expect_unreachable(memory, "MIG");
  memory.device_uuid = "GPU-00000000-0000-0000-0000-000000000000";
  expect_unreachable(memory, "no such GPU");
  memory = Allocation(exporter);
  memory.ipc_handle.assign(memory.ipc_handle.size(), '\x5a');
  expect_unreachable(memory, "handle");
  // As PyTorch writes it.
  memory = Allocation(exporter);
  memory.device_uuid = device_->uuid().substr(4);
  EXPECT_TRUE(OpenStatus(memory, 1).ok());
  // No fault stays with the device.
  EXPECT_TRUE(device_->Synchronize().ok());
}

TEST_F(CudaRegionsTest, MemoryOfAProcessThatDiedCannotBeOpened) {
  auto exporter = std::make_unique<CudaMemoryExporter>(1 << 20);
  const CudaAllocation memory = Allocation(*exporter);
  exporter.reset();
  EXPECT_EQ(OpenStatus(memory, 1).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(device_->Synchronize().ok());
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

size_t FreeGpuMemory() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return free;
}

TEST_F(CudaRegionsTest, ManyCyclesLeaveNothingOpen) {
  constexpr int kCycles = 10'000;
  CudaMemoryExporter exporter(1 << 20);
  SharedMemoryTestObject object(std::string(1 << 16, 'x'));
  const Region cuda{1, 1 << 20, Allocation(exporter)};
  const Region shared{2, 1 << 16, object.Object()};
  CudaAllocation garbage = Allocation(exporter);
  garbage.ipc_handle.assign(garbage.ipc_handle.size(), '\x5a');
  const auto cycle = [&] {
    ASSERT_TRUE(opener_->Open(cuda).ok());
    ASSERT_TRUE(opener_->Open(shared).ok());
    ASSERT_FALSE(OpenStatus(garbage, 1).ok());
    ASSERT_FALSE(OpenStatus(Allocation(exporter), uint64_t{1} << 40).ok());
  };
  cycle();
  const size_t descriptors = OpenDescriptors();
  const size_t memory = FreeGpuMemory();
  for (int i = 0; i < kCycles; ++i) cycle();
  EXPECT_EQ(OpenDescriptors(), descriptors);
  // Somebody else may use the GPU a little; one region each would be more.
  EXPECT_GE(FreeGpuMemory() + (64 << 20), memory);
}

TEST_F(CudaRegionsTest, SharedMemoryIsCopiedInPiecesLargeAndSmall) {
  std::string bytes(3 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(i % 251);
  }
  SharedMemoryTestObject object(bytes);
  // From the middle of a page.
  auto region = opener_->Open({1, (3 << 20) - 5000, object.Object(5000)});
  ASSERT_TRUE(region.ok()) << region.status();
  EXPECT_EQ((*region)->device_memory(), nullptr);
  for (const int64_t size : {1, 65'535, 65'536, 2'000'001}) {
    EXPECT_TRUE(Read(region->get(), 77, size) ==
                bytes.substr(5077, static_cast<size_t>(size)));
    const std::string written(static_cast<size_t>(size), 'w');
    ASSERT_TRUE(Write(region->get(), 333, written).ok());
    bytes.replace(5333, written.size(), written);
    EXPECT_TRUE(object.Bytes() == bytes);
  }
}

TEST_F(CudaRegionsTest, AnObjectThatShrinksHarmsNeitherGpuNorProcess) {
  SharedMemoryTestObject object(std::string(4 << 20, 'x'));
  auto region = opener_->Open({1, 4 << 20, object.Object()});
  ASSERT_TRUE(region.ok());
  object.Truncate(4096);
  EXPECT_EQ((*region)->Check().code(), absl::StatusCode::kFailedPrecondition);
  // Locked pages outlive the object's.
  EXPECT_EQ(Read(region->get(), 0, 4 << 20).size(), size_t{4} << 20);
  EXPECT_TRUE(Write(region->get(), 0, std::string(4 << 20, 'y')).ok());
  EXPECT_EQ(object.size(), 4096);
  // Small pieces are the file's.
  EXPECT_EQ(Write(region->get(), 10'000, "small").code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(object.size(), 4096);
  region->reset();
  EXPECT_TRUE(device_->Synchronize().ok());
}

TEST_F(CudaRegionsTest, PinnedBuffersAreCopiedAtOnce) {
  HostBufferPool pool(MakeCudaPinnedMemory(0));
  const std::shared_ptr<HostBuffer> buffer = *pool.Take(1 << 20);
  EXPECT_TRUE(buffer->is_pinned());
  cudaPointerAttributes attributes;
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, buffer->data()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
}

// A rank alone in its group.
class CudaCallTest : public CudaRegionsTest {
 protected:
  void SetUp() override {
    CudaRegionsTest::SetUp();
    if (IsSkipped()) return;
    kernels_ = std::make_unique<TorchCudaAttentionKernels>(device_.get());
    regions_ = std::make_unique<RegionTable>(opener_.get());
    executor_ = std::make_unique<RankExecutor>(
        device_.get(), communicator_.get(), kernels_.get(), &buffers_,
        regions_.get());
  }

  static AttentionShape Shape(int64_t batch) {
    AttentionShape shape;
    shape.dtype = DataType::kBFloat16;
    shape.batch = batch;
    shape.image_tokens = 70;
    shape.text_tokens = 20;
    shape.valid_text_tokens.assign(static_cast<size_t>(batch), 15);
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.head_dim = 64;
    return shape;
  }

  RankCall Call(const AttentionShape& shape) {
    RankCall call;
    call.number = ++number_;
    call.shape = shape;
    call.options.softmax_scale = oracle::DefaultScale(shape);
    call.return_text_output = true;
    call.plan_fingerprint =
        MakeSequenceParallelPlan(shape, call.options, 1,
                                 PlanPolicyFor(device_->name(), shape, 1))
            ->Fingerprint();
    return call;
  }

  HostBufferPool buffers_{MakeCudaPinnedMemory(0)};
  InProcessGroup group_{1};
  const std::unique_ptr<Communicator> communicator_ =
      group_.MakeCommunicator(0);
  std::unique_ptr<TorchCudaAttentionKernels> kernels_;
  std::unique_ptr<RegionTable> regions_;
  std::unique_ptr<RankExecutor> executor_;
  uint64_t number_ = 0;
};

TEST_F(CudaCallTest, PinnedInputsGiveWhatOthersGive) {
  const AttentionShape shape = Shape(2);
  // Whatever it means as a tensor: halves around 1.
  const std::string bytes(static_cast<size_t>(2 * 90 * (4 + 2 + 2) * 64 * 2),
                          '\x3f');
  const std::shared_ptr<HostBuffer> pinned =
      *buffers_.Take(static_cast<int64_t>(bytes.size()));
  ASSERT_TRUE(pinned->is_pinned());
  std::copy(bytes.begin(), bytes.end(), pinned->data());
  std::vector<std::string> outputs;
  for (const char* data :
       {bytes.data(), static_cast<char const*>(pinned->data())}) {
    RankCall call = Call(shape);
    call.tensors = {{data, bytes.size()}};
    call.tensors_are_pinned = data == pinned->data();
    const auto result = executor_->Run(std::move(call));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_TRUE(result->output->is_pinned());
    outputs.emplace_back(result->output->data(),
                         static_cast<size_t>(result->output_bytes));
  }
  EXPECT_EQ(outputs[0].size(), size_t{2 * 90 * 4 * 64 * 2});
  EXPECT_TRUE(outputs[0] == outputs[1]);
}

TEST_F(CudaCallTest, ACallReadsAndWritesAnotherProcesssMemory) {
  for (const int64_t batch : {1, 2}) {
    const AttentionShape shape = Shape(batch);
    const oracle::CallInputs inputs = oracle::RandomInputs(shape, 3);
    // Beside the query, and over it.
    for (const bool over_query : {false, true}) {
      const uint64_t query = 256;
      const uint64_t key = query + inputs.query.size();
      const uint64_t value = key + inputs.key.size();
      const uint64_t end = value + inputs.value.size();
      const uint64_t output = over_query ? query : end;
      const uint64_t total = end + inputs.query.size();
      CudaMemoryExporter exporter(static_cast<int64_t>(total));
      RankCall call = Call(shape);
      const Region region{call.number, total, Allocation(exporter)};
      {
        auto attached = regions_->Acquire(region);
        ASSERT_TRUE(attached.ok()) << attached.status();
        ASSERT_TRUE(Write(attached->get(), static_cast<int64_t>(query),
                          inputs.query + inputs.key + inputs.value)
                        .ok());
      }
      call.query = RegionSlice{region, query, inputs.query.size()};
      call.key = RegionSlice{region, key, inputs.key.size()};
      call.value = RegionSlice{region, value, inputs.value.size()};
      call.output = RegionSlice{region, output, inputs.query.size()};
      const auto result = executor_->Run(std::move(call));
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->output_bytes, 0);
      const std::string written =
          exporter.Bytes().substr(output, inputs.query.size());
      EXPECT_LE(
          oracle::RelativeL2Error(
              oracle::Decode(shape.dtype, written),
              oracle::Attention(shape, oracle::DefaultScale(shape), inputs)),
          oracle::AcceptedError(shape.dtype));
      regions_->DropAll();
    }
  }
}

}  // namespace
}  // namespace ithaca

int main(int argc, char** argv) {
  ithaca::RunCudaMemoryExporter(argc, argv);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
