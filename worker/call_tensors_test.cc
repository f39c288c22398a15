#include "worker/call_tensors.h"

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/cpu_device.h"

namespace ithaca {
namespace {

using ::testing::HasSubstr;

// Memory that the device reaches by itself, as another process's on one GPU.
class SharedDeviceMemory : public RegionOpener {
 public:
  // Aligned for every dtype.
  char* data() { return reinterpret_cast<char*>(words_.data()); }

  absl::StatusOr<std::unique_ptr<AttachedRegion>> Open(
      const Region& /*region*/) override {
    return std::make_unique<Reached>(data());
  }

 private:
  class Reached : public AttachedRegion {
   public:
    explicit Reached(char* data) : data_(data) {}
    char* device_memory() override { return data_; }
    absl::Status Check() override { return absl::OkStatus(); }
    absl::Status CopyToDevice(Device* device, void* dst, int64_t offset,
                              int64_t bytes) override {
      return device->CopyFromHost(dst, data_ + offset, bytes);
    }
    absl::Status CopyFromDevice(Device* device, int64_t offset, const void* src,
                                int64_t bytes) override {
      return device->CopyToHost(data_ + offset, src, bytes);
    }

   private:
    char* const data_;
  };

  std::vector<double> words_ = std::vector<double>(512);
};

// A region too large for a test to have: there is memory at its end alone, and
// it has to be copied.
class FarMemory : public RegionOpener {
 public:
  static constexpr int64_t kBegin = int64_t{1} << 32;
  static constexpr int64_t kBytes = 256;

  float* data() { return data_.data(); }

  absl::StatusOr<std::unique_ptr<AttachedRegion>> Open(
      const Region& /*region*/) override {
    return std::make_unique<Copied>(reinterpret_cast<char*>(data()));
  }

 private:
  class Copied : public AttachedRegion {
   public:
    explicit Copied(char* data) : data_(data) {}
    absl::Status Check() override { return absl::OkStatus(); }
    absl::Status CopyToDevice(Device* device, void* dst, int64_t offset,
                              int64_t bytes) override {
      if (!IsThere(offset, bytes)) return Elsewhere(offset);
      return device->CopyFromHost(dst, data_ + (offset - kBegin), bytes);
    }
    absl::Status CopyFromDevice(Device* device, int64_t offset, const void* src,
                                int64_t bytes) override {
      if (!IsThere(offset, bytes)) return Elsewhere(offset);
      return device->CopyToHost(data_ + (offset - kBegin), src, bytes);
    }

   private:
    static bool IsThere(int64_t offset, int64_t bytes) {
      return offset >= kBegin && offset + bytes <= kBegin + kBytes;
    }
    static absl::Status Elsewhere(int64_t offset) {
      return absl::OutOfRangeError(std::to_string(offset));
    }

    char* const data_;
  };

  std::vector<float> data_ = std::vector<float>(kBytes / sizeof(float));
};

// One head of one float32: a row is 4 bytes.
AttentionShape Shape(int64_t batch) {
  AttentionShape shape;
  shape.batch = batch;
  shape.image_tokens = 5;
  shape.text_tokens = 3;
  shape.valid_text_tokens.assign(static_cast<size_t>(batch), 3);
  return shape;
}

class CallTensorsTest : public ::testing::Test {
 protected:
  // A tensor of the call at `offset` of the region.
  static RegionSlice At(uint64_t offset, int64_t batch = 1) {
    return {{1, 2048, CudaAllocation{}},
            offset,
            static_cast<uint64_t>(batch) * 8 * 4};
  }

  absl::StatusOr<CallTensors> Open(const RankCall& call, int64_t batch = 1) {
    return CallTensors::Open(
        call, *MakeSequenceParallelPlan(Shape(batch), {}, 2), 1, &table_);
  }

  SharedDeviceMemory memory_;
  RegionTable table_{&memory_};
  CpuDevice device_;
  Arena arena_{&device_};
};

TEST_F(CallTensorsTest, RowsInOneRunStayWhereTheDeviceReachesThem) {
  RankCall call;
  call.query = At(0);
  call.key = At(64);
  call.output = At(128);
  call.return_text_output = true;
  absl::StatusOr<CallTensors> tensors = Open(call);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(tensors->host_output_bytes(), 0);
  ASSERT_TRUE(arena_.Reset(tensors->arena_bytes()).ok());
  tensors->Place(&arena_);
  // Rank 1 of 2 has image tokens 3 and 4, and text from token 5.
  EXPECT_EQ(tensors->inputs().image_query, memory_.data() + 3 * 4);
  EXPECT_EQ(tensors->inputs().text_query, memory_.data() + 5 * 4);
  EXPECT_EQ(tensors->inputs().image_key, memory_.data() + 64 + 3 * 4);
  EXPECT_EQ(tensors->outputs().image, memory_.data() + 128 + 3 * 4);
  EXPECT_EQ(tensors->outputs().text, memory_.data() + 128 + 5 * 4);
  // The value comes in the message.
  EXPECT_EQ(arena_.capacity(), 2 * 256);
}

TEST_F(CallTensorsTest, TextThatAnotherRankReturnsIsNotWrittenToTheRegion) {
  RankCall call;
  call.output = At(0);
  absl::StatusOr<CallTensors> tensors = Open(call);
  ASSERT_TRUE(tensors.ok());
  ASSERT_TRUE(arena_.Reset(tensors->arena_bytes()).ok());
  tensors->Place(&arena_);
  EXPECT_EQ(tensors->outputs().image, memory_.data() + 3 * 4);
  EXPECT_NE(tensors->outputs().text, memory_.data() + 5 * 4);
}

TEST_F(CallTensorsTest, AnOutputOverAnInputIsWrittenAtTheEnd) {
  RankCall call;
  call.query = At(0);
  call.output = At(0);
  call.return_text_output = true;
  absl::StatusOr<CallTensors> tensors = Open(call);
  ASSERT_TRUE(tensors.ok());
  ASSERT_TRUE(arena_.Reset(tensors->arena_bytes()).ok());
  tensors->Place(&arena_);
  EXPECT_EQ(tensors->inputs().image_query, memory_.data() + 3 * 4);
  EXPECT_NE(tensors->outputs().image, memory_.data() + 3 * 4);
  static_cast<float*>(tensors->outputs().image)[1] = 7;
  static_cast<float*>(tensors->outputs().text)[2] = 8;
  HostBuffer none(0);
  ASSERT_TRUE(tensors->Gather(&device_, &none).ok());
  const auto* region = reinterpret_cast<const float*>(memory_.data());
  EXPECT_EQ(region[4], 7);
  EXPECT_EQ(region[7], 8);
}

TEST_F(CallTensorsTest, RowsOfSeveralElementsOrOutOfLineAreCopied) {
  auto* region = reinterpret_cast<float*>(memory_.data());
  for (int i = 0; i < 100; ++i) region[i] = static_cast<float>(i);
  for (const uint64_t offset : {0, 2}) {
    RankCall call;
    call.query = At(offset, 2);
    call.key = At(64 + offset, 2);
    call.value = At(128 + offset, 2);
    absl::StatusOr<CallTensors> tensors = Open(call, 2);
    ASSERT_TRUE(tensors.ok());
    ASSERT_TRUE(arena_.Reset(tensors->arena_bytes()).ok());
    tensors->Place(&arena_);
    ASSERT_TRUE(tensors->Scatter(call, &device_).ok());
    const RankInputs inputs = tensors->inputs();
    // Image tokens 3 and 4, then the text, of both elements.
    const std::string image =
        std::string(memory_.data() + offset + 3 * 4, 8) +
        std::string(memory_.data() + offset + (8 + 3) * 4, 8);
    EXPECT_EQ(std::string(static_cast<const char*>(inputs.image_query), 16),
              image);
    const std::string text =
        std::string(memory_.data() + 128 + offset + 5 * 4, 12) +
        std::string(memory_.data() + 128 + offset + (8 + 5) * 4, 12);
    EXPECT_EQ(std::string(static_cast<const char*>(inputs.text_value), 24),
              text);
  }
}

TEST_F(CallTensorsTest, ASliceFarInARegionIsReadAndWrittenThere) {
  FarMemory memory;
  RegionTable table(&memory);
  // Tensors of 8 rows at `offset` bytes of what is there.
  const auto slice_at = [](int64_t offset) {
    return RegionSlice{
        {1, FarMemory::kBegin + FarMemory::kBytes, CudaAllocation{}},
        static_cast<uint64_t>(FarMemory::kBegin + offset),
        8 * 4};
  };
  RankCall call;
  call.query = call.key = call.value = slice_at(64);
  call.output = slice_at(128);
  call.return_text_output = true;
  float* const inputs = memory.data() + 64 / 4;
  float* const outputs = memory.data() + 128 / 4;
  for (int i = 0; i < 8; ++i) inputs[i] = static_cast<float>(i);
  absl::StatusOr<CallTensors> tensors = CallTensors::Open(
      call, *MakeSequenceParallelPlan(Shape(1), {}, 2), 1, &table);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_TRUE(arena_.Reset(tensors->arena_bytes()).ok());
  tensors->Place(&arena_);
  const absl::Status scattered = tensors->Scatter(call, &device_);
  ASSERT_TRUE(scattered.ok()) << scattered;
  // Rank 1 of 2 has image tokens 3 and 4, and text from token 5.
  EXPECT_EQ(static_cast<const float*>(tensors->inputs().image_query)[1], 4);
  EXPECT_EQ(static_cast<const float*>(tensors->inputs().text_value)[2], 7);
  for (int i = 0; i < 2; ++i) {
    static_cast<float*>(tensors->outputs().image)[i] = 13.0F + 1.0F * i;
  }
  for (int i = 0; i < 3; ++i) {
    static_cast<float*>(tensors->outputs().text)[i] = 15.0F + 1.0F * i;
  }
  HostBuffer none(0);
  const absl::Status gathered = tensors->Gather(&device_, &none);
  ASSERT_TRUE(gathered.ok()) << gathered;
  EXPECT_EQ(std::vector<float>(outputs, outputs + 8),
            std::vector<float>({0, 0, 0, 13, 14, 15, 16, 17}));
}

TEST_F(CallTensorsTest, WhatTheDeviceReachesOnTheHostStaysThere) {
  RankCall call;
  call.key = At(0);
  call.return_text_output = true;
  // Image query and value, 2 rows each, then text query and value, 3 each.
  const std::vector<float> message = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto* bytes = reinterpret_cast<const char*>(message.data());
  call.tensors = {{bytes, 40}};
  absl::StatusOr<CallTensors> tensors = Open(call);
  ASSERT_TRUE(tensors.ok());
  HostBuffer host(tensors->host_output_bytes());
  tensors->StayOnHost(call, &host);
  EXPECT_TRUE(tensors->reads_message());
  EXPECT_EQ(tensors->arena_bytes(), 0);
  tensors->Place(&arena_);
  EXPECT_EQ(tensors->inputs().image_query, bytes);
  EXPECT_EQ(tensors->inputs().image_key, memory_.data() + 3 * 4);
  EXPECT_EQ(tensors->inputs().image_value, bytes + 2 * 4);
  EXPECT_EQ(tensors->inputs().text_query, bytes + 4 * 4);
  EXPECT_EQ(tensors->inputs().text_value, bytes + 7 * 4);
  EXPECT_EQ(tensors->outputs().image, host.data());
  EXPECT_EQ(tensors->outputs().text, host.data() + 2 * 4);
  EXPECT_TRUE(tensors->Scatter(call, &device_).ok());
  EXPECT_TRUE(tensors->Gather(&device_, &host).ok());
}

TEST_F(CallTensorsTest, PiecesAndBytesOutOfLineAreCopiedAllTheSame) {
  std::vector<float> message(16);
  for (int i = 0; i < 16; ++i) message[static_cast<size_t>(i)] = 1.0F * i;
  std::vector<char> odd(1 + 60);
  std::memcpy(odd.data() + 1, message.data(), 60);
  const auto* bytes = reinterpret_cast<const char*>(message.data());
  for (const std::vector<std::string_view>& pieces :
       {std::vector<std::string_view>{{bytes, 7}, {bytes + 7, 53}},
        {{odd.data() + 1, 60}}}) {
    RankCall call;
    call.tensors = pieces;
    absl::StatusOr<CallTensors> tensors = Open(call);
    ASSERT_TRUE(tensors.ok());
    HostBuffer host(tensors->host_output_bytes());
    tensors->StayOnHost(call, &host);
    EXPECT_FALSE(tensors->reads_message());
    ASSERT_TRUE(arena_.Reset(tensors->arena_bytes()).ok());
    tensors->Place(&arena_);
    ASSERT_TRUE(tensors->Scatter(call, &device_).ok());
    const auto first = [](const void* rows) {
      return *static_cast<const float*>(rows);
    };
    EXPECT_EQ(first(tensors->inputs().image_query), 0);
    EXPECT_EQ(first(tensors->inputs().image_value), 4);
    EXPECT_EQ(first(tensors->inputs().text_query), 6);
    EXPECT_EQ(first(tensors->inputs().text_value), 12);
    // Text that another rank returns has no place in what is sent.
    EXPECT_EQ(tensors->outputs().image, host.data());
    EXPECT_NE(tensors->outputs().text, host.data() + 2 * 4);
  }
}

TEST_F(CallTensorsTest, ASliceThatIsNotTheTensorIsInvalid) {
  RankCall call;
  call.key = At(0);
  call.key->byte_size += 4;
  absl::Status status = Open(call).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("key"));
  for (const uint64_t offset : {uint64_t{2048 - 31}, ~uint64_t{0}}) {
    call.key = At(offset);
    EXPECT_EQ(Open(call).status().code(), absl::StatusCode::kInvalidArgument);
  }
  call.key = At(2048 - 32);
  EXPECT_TRUE(Open(call).ok());
}

TEST_F(CallTensorsTest, InlineBytesAreThoseThatNoRegionHas) {
  const SequenceParallelPlan plan = *MakeSequenceParallelPlan(Shape(1), {}, 2);
  RankCall call;
  EXPECT_EQ(InlineInputBytes(plan, 1, call), 3 * (2 + 3) * 4);
  call.key = At(0);
  call.output = At(0);
  EXPECT_EQ(InlineInputBytes(plan, 1, call), 2 * (2 + 3) * 4);
  call.query = call.value = At(0);
  EXPECT_EQ(InlineInputBytes(plan, 1, call), 0);
}

}  // namespace
}  // namespace ithaca
