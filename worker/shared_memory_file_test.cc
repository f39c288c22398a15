#include "worker/shared_memory_file.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "worker/shared_memory_test_object.h"

namespace ithaca {
namespace {

absl::StatusCode OpenCode(const SharedMemoryObject& object,
                          uint64_t byte_size) {
  return SharedMemoryFile::Open(object, byte_size).status().code();
}

TEST(SharedMemoryFileTest, ReadsAndWritesWithinItsRegion) {
  SharedMemoryTestObject object("0123456789");
  const auto file = SharedMemoryFile::Open(object.Object(2), 6);
  ASSERT_TRUE(file.ok()) << file.status();
  std::string read(3, ' ');
  ASSERT_TRUE(file->Read(read.data(), 1, 3).ok());
  EXPECT_EQ(read, "345");
  ASSERT_TRUE(file->Write(4, "xy", 2).ok());
  EXPECT_EQ(object.Bytes(), "012345xy89");
  EXPECT_TRUE(file->Check().ok());
}

TEST(SharedMemoryFileTest, AnObjectThatIsNotTheOneRegisteredIsNotFound) {
  SharedMemoryTestObject object("0123456789");
  SharedMemoryObject other = object.Object();
  other.name += "-another";
  EXPECT_EQ(OpenCode(other, 1), absl::StatusCode::kNotFound);
  other = object.Object();
  ++other.inode;
  EXPECT_EQ(OpenCode(other, 1), absl::StatusCode::kNotFound);
  other = object.Object();
  ++other.device_number;
  EXPECT_EQ(OpenCode(other, 1), absl::StatusCode::kNotFound);
  other = object.Object();
  other.name = "/a/path";
  EXPECT_EQ(OpenCode(other, 1), absl::StatusCode::kNotFound);
}

TEST(SharedMemoryFileTest, ARegionOutsideOfItsObjectIsInvalid) {
  SharedMemoryTestObject object("0123456789");
  EXPECT_EQ(OpenCode(object.Object(0), 10), absl::StatusCode::kOk);
  EXPECT_EQ(OpenCode(object.Object(10), 0), absl::StatusCode::kOk);
  for (const auto& [offset, size] : {std::pair<uint64_t, uint64_t>{0, 11},
                                     {1, 10},
                                     {11, 0},
                                     {5, ~uint64_t{0}},
                                     {~uint64_t{0}, 2},
                                     {~uint64_t{0}, ~uint64_t{0}}}) {
    EXPECT_EQ(OpenCode(object.Object(offset), size),
              absl::StatusCode::kInvalidArgument)
        << offset << " " << size;
  }
}

TEST(SharedMemoryFileTest, AnObjectThatShrankIsSaidAndNotMadeLargerAgain) {
  SharedMemoryTestObject object("0123456789");
  const auto file = SharedMemoryFile::Open(object.Object(2), 8);
  ASSERT_TRUE(file.ok());
  object.Truncate(5);
  EXPECT_EQ(file->Check().code(), absl::StatusCode::kFailedPrecondition);
  std::string read(8, ' ');
  EXPECT_EQ(file->Read(read.data(), 0, 8).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(file->Write(0, "x", 1).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(file->Write(5, "x", 1).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(object.Bytes(), "01234");
  // What is left can be read.
  EXPECT_TRUE(file->Read(read.data(), 0, 3).ok());
  object.Truncate(20);
  EXPECT_TRUE(file->Check().ok());
}

}  // namespace
}  // namespace ithaca
