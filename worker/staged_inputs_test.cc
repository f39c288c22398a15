#include "worker/staged_inputs.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace ithaca {
namespace {

class StagedInputsTest : public ::testing::Test {
 protected:
  absl::Status Put(uint64_t offset, std::string_view bytes) {
    // In two pieces.
    const std::vector<std::string_view> pieces = {
        bytes.substr(0, bytes.size() / 2), bytes.substr(bytes.size() / 2)};
    return staged_.Put(offset, pieces);
  }

  std::string Bytes() const { return {staged_.buffer()->data(), 10}; }

  HostBufferPool pool_;
  StagedInputs staged_{*pool_.Take(10), 10};
};

TEST_F(StagedInputsTest, ChunksInAnyOrderFillTheBuffer) {
  for (const uint64_t offset : {6, 0, 8, 4, 2}) {
    EXPECT_GT(staged_.missing(), 0);
    EXPECT_TRUE(
        Put(offset, std::string_view("abcdefghij").substr(offset, 2)).ok());
  }
  EXPECT_EQ(staged_.missing(), 0);
  EXPECT_EQ(Bytes(), "abcdefghij");
}

TEST_F(StagedInputsTest, WhatDoesNotLieWithinIsRefused) {
  for (const uint64_t offset : {uint64_t{9}, uint64_t{10}, uint64_t{11},
                                ~uint64_t{0}, ~uint64_t{0} - 1}) {
    EXPECT_EQ(Put(offset, "xy").code(), absl::StatusCode::kInvalidArgument)
        << offset;
  }
  EXPECT_EQ(staged_.missing(), 10);
}

TEST_F(StagedInputsTest, WhatHasComeBeforeIsRefusedAndStays) {
  ASSERT_TRUE(Put(2, "cdef").ok());
  for (const uint64_t offset : {0, 1, 2, 3, 4, 5}) {
    EXPECT_EQ(Put(offset, "xyz").code(), absl::StatusCode::kInvalidArgument)
        << offset;
  }
  EXPECT_EQ(Put(0, "xyzxyzxyzx").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(staged_.missing(), 6);
  EXPECT_TRUE(Put(0, "ab").ok());
  EXPECT_TRUE(Put(6, "ghij").ok());
  EXPECT_EQ(Put(5, "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Bytes(), "abcdefghij");
}

TEST_F(StagedInputsTest, AnEmptyChunkIsNoChunk) {
  EXPECT_TRUE(Put(10, "").ok());
  EXPECT_TRUE(Put(3, "").ok());
  EXPECT_TRUE(Put(0, "abcdefghij").ok());
  EXPECT_TRUE(Put(3, "").ok());
  EXPECT_EQ(staged_.missing(), 0);
}

TEST_F(StagedInputsTest, WithoutABufferBytesAreOnlyCounted) {
  StagedInputs counted(nullptr, int64_t{1} << 40);
  const std::vector<std::string_view> pieces = {"abc", "de"};
  EXPECT_TRUE(counted.Put(uint64_t{1} << 39, pieces).ok());
  EXPECT_EQ(counted.missing(), (int64_t{1} << 40) - 5);
}

}  // namespace
}  // namespace ithaca
