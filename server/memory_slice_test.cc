#include "server/memory_slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ithaca/v1/attention.pb.h"

namespace ithaca::server {
namespace {

using ::testing::HasSubstr;
namespace v1 = ithaca::v1;

constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
// Query and output of 48 bytes, key and value of 32, of float32.
constexpr TensorSizes kSizes = {48, 32, 4};

// Regions "a" and "b" of one object, b from byte 100 on; "c" of another; "odd"
// from byte 2 of a third.
class MemorySliceTest : public ::testing::Test {
 protected:
  MemorySliceTest() {
    Add("a", 7, 0, 256);
    Add("b", 7, 100, 156);
    Add("c", 8, 0, 256);
    Add("odd", 9, 2, 256);
  }

  void Add(const std::string& name, uint64_t inode, uint64_t offset,
           uint64_t byte_size) {
    auto region = std::make_shared<MemoryRegion>();
    region->name = name;
    region->memory.set_byte_size(byte_size);
    region->memory.mutable_shared()->set_inode(inode);
    region->memory.mutable_shared()->set_offset(offset);
    regions_[name] = region;
  }

  static void Set(v1::MemorySlice* slice, const std::string& region,
                  uint64_t offset, uint64_t byte_size) {
    slice->set_region(region);
    slice->set_offset(offset);
    slice->set_byte_size(byte_size);
  }

  absl::StatusOr<CallRegions> Read(const v1::AttentionRequest& request) {
    return ReadSlices(
        request, kSizes,
        [this](const std::string& name) -> absl::StatusOr<RegionPin> {
          const auto found = regions_.find(name);
          if (found == regions_.end()) {
            return absl::NotFoundError("region: none");
          }
          ++lookups_;
          return RegionPin{found->second, found->second};
        });
  }

  void ExpectRefused(const v1::AttentionRequest& request, absl::StatusCode code,
                     const std::vector<std::string>& parts) {
    const absl::Status status = Read(request).status();
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& part : parts) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    }
  }
  void ExpectInvalid(const v1::AttentionRequest& request,
                     const std::vector<std::string>& parts) {
    ExpectRefused(request, absl::StatusCode::kInvalidArgument, parts);
  }

  v1::AttentionRequest QueryIn(const std::string& region, uint64_t offset,
                               uint64_t byte_size) {
    v1::AttentionRequest request;
    Set(request.mutable_query()->mutable_memory(), region, offset, byte_size);
    return request;
  }

  std::map<std::string, std::shared_ptr<const MemoryRegion>> regions_;
  int lookups_ = 0;
};

TEST_F(MemorySliceTest, EachTensorIsFoundWhereItLies) {
  v1::AttentionRequest request = QueryIn("a", 208, 48);
  Set(request.mutable_key()->mutable_memory(), "a", 0, 32);
  Set(request.mutable_value()->mutable_memory(), "a", 0, 32);
  Set(request.mutable_output(), "c", 0, 48);
  EXPECT_TRUE(HasSlices(request));
  const auto regions = Read(request);
  ASSERT_TRUE(regions.ok()) << regions.status();
  EXPECT_EQ(regions->query.region, regions_["a"]);
  EXPECT_EQ(regions->query.offset, 208u);
  EXPECT_EQ(regions->query.byte_size, 48u);
  EXPECT_EQ(regions->output.region, regions_["c"]);
  EXPECT_EQ(regions->output_place(), OutputPlace::kRegion);
  // Each region is held once, however many tensors are in it.
  EXPECT_EQ(regions->holds.size(), 2u);
  EXPECT_EQ(lookups_, 2);
}

TEST_F(MemorySliceTest, TensorsInTheMessageNameNothing) {
  const v1::AttentionRequest request;
  EXPECT_FALSE(HasSlices(request));
  const auto regions = Read(request);
  ASSERT_TRUE(regions.ok());
  EXPECT_EQ(regions->query.region, nullptr);
  EXPECT_EQ(regions->output_place(), OutputPlace::kResponse);
}

TEST_F(MemorySliceTest, ASliceBeyondItsRegionIsRefused) {
  for (const uint64_t offset : {uint64_t{209}, uint64_t{212}, uint64_t{256},
                                uint64_t{257}, kMost, kMost - 47}) {
    ExpectInvalid(QueryIn("a", offset, 48),
                  {"query.memory.offset", "256", std::to_string(offset)});
  }
}

TEST_F(MemorySliceTest, ASliceOfAnotherSizeThanItsTensorIsRefused) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{47}, uint64_t{49}, kMost}) {
    ExpectInvalid(QueryIn("a", 0, size),
                  {"query.memory.byte_size", "48", std::to_string(size)});
  }
  v1::AttentionRequest request;
  Set(request.mutable_value()->mutable_memory(), "a", 0, 48);
  ExpectInvalid(request, {"value.memory.byte_size", "32", "got 48"});
  request.clear_value();
  Set(request.mutable_output(), "a", 0, 32);
  ExpectInvalid(request, {"output.byte_size", "48", "got 32"});
}

TEST_F(MemorySliceTest, ASliceBetweenElementsIsRefused) {
  for (const uint64_t offset : {1, 2, 3, 5}) {
    ExpectInvalid(QueryIn("a", offset, 48), {"query.memory.offset", "4 bytes"});
  }
  // What counts is where the tensor is in memory.
  ExpectInvalid(QueryIn("odd", 0, 48), {"query.memory.offset"});
  EXPECT_TRUE(Read(QueryIn("odd", 2, 48)).ok());
}

TEST_F(MemorySliceTest, AnOutputOnTopOfAnInputIsRefused) {
  v1::AttentionRequest request = QueryIn("a", 100, 48);
  for (const uint64_t offset : {56, 100, 144}) {
    Set(request.mutable_output(), "a", offset, 48);
    ExpectInvalid(request, {"output", "query.memory"});
  }
  for (const uint64_t offset : {52, 148}) {
    Set(request.mutable_output(), "a", offset, 48);
    EXPECT_TRUE(Read(request).ok()) << offset;
  }
  // The same bytes by another name.
  Set(request.mutable_output(), "b", 0, 48);
  ExpectInvalid(request, {"output", "query.memory"});
  Set(request.mutable_output(), "b", 48, 48);
  EXPECT_TRUE(Read(request).ok());
  // The same offsets of another object.
  Set(request.mutable_output(), "c", 100, 48);
  EXPECT_TRUE(Read(request).ok());
}

TEST_F(MemorySliceTest, ARegionThatIsNotTheresIsRefusedByField) {
  v1::AttentionRequest request;
  Set(request.mutable_key()->mutable_memory(), "other", 0, 32);
  ExpectRefused(request, absl::StatusCode::kNotFound, {"key.memory.region"});
  request.clear_key();
  Set(request.mutable_output(), "", 0, 48);
  ExpectRefused(request, absl::StatusCode::kNotFound, {"output.region"});
}

TEST_F(MemorySliceTest, WithoutAMemoryPlaneSlicesAreUnimplemented) {
  const absl::Status status =
      ReadSlices(QueryIn("a", 0, 48), kSizes, RegionLookup()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("no memory plane enabled"));
}

}  // namespace
}  // namespace ithaca::server
