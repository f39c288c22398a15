#include "server/shared_memory_object.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/lease_token.h"

namespace ithaca::server {
namespace {

class SharedMemoryObjectTest : public ::testing::Test {
 protected:
  ~SharedMemoryObjectTest() override { shm_unlink(name_.c_str()); }

  void Create(off_t size) const {
    const int fd = shm_open(name_.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(ftruncate(fd, size), 0);
    close(fd);
  }
  bool Exists() const {
    const int fd = shm_open(name_.c_str(), O_RDONLY, 0);
    if (fd >= 0) close(fd);
    return fd >= 0;
  }
  void Truncate(off_t size) const {
    const int fd = shm_open(name_.c_str(), O_RDWR, 0);
    ASSERT_EQ(ftruncate(fd, size), 0);
    close(fd);
  }

  const std::string name_ = "/ithaca-object-test-" + NewLeaseToken();
};

TEST_F(SharedMemoryObjectTest, ItsSizeIsThatOfNow) {
  Create(100);
  const auto object = SharedMemoryObject::Open(name_);
  ASSERT_TRUE(object.ok()) << object.status();
  EXPECT_EQ(object->Size(), 100u);
  EXPECT_NE(object->inode(), 0u);
  Truncate(7);
  EXPECT_EQ(object->Size(), 7u);
}

TEST_F(SharedMemoryObjectTest, ANameThatIsNotThereIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(SharedMemoryObject::Open(name_).status()));
}

TEST_F(SharedMemoryObjectTest, WhatIsNoFileIsRefused) {
  const std::string path = "/dev/shm" + name_;
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(
      absl::IsInvalidArgument(SharedMemoryObject::Open(name_).status()));
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(symlink("/etc/passwd", path.c_str()), 0);
  EXPECT_TRUE(
      absl::IsInvalidArgument(SharedMemoryObject::Open(name_).status()));
  ASSERT_EQ(unlink(path.c_str()), 0);
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  EXPECT_TRUE(
      absl::IsInvalidArgument(SharedMemoryObject::Open(name_).status()));
  ASSERT_EQ(rmdir(path.c_str()), 0);
}

TEST_F(SharedMemoryObjectTest, UnlinkRemovesOnlyItsOwnName) {
  Create(100);
  const auto first = SharedMemoryObject::Open(name_);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(shm_unlink(name_.c_str()), 0);
  Create(100);
  first->Unlink();
  EXPECT_TRUE(Exists());
  const auto second = SharedMemoryObject::Open(name_);
  ASSERT_TRUE(second.ok());
  second->Unlink();
  EXPECT_FALSE(Exists());
  second->Unlink();
}

TEST_F(SharedMemoryObjectTest, ItsDescriptorIsClosedOnce) {
  Create(100);
  const int before = open("/dev/null", O_RDONLY);
  close(before);
  {
    auto object = SharedMemoryObject::Open(name_);
    ASSERT_TRUE(object.ok());
    SharedMemoryObject moved = *std::move(object);
    EXPECT_EQ(moved.Size(), 100u);
    auto other = SharedMemoryObject::Open(name_);
    ASSERT_TRUE(other.ok());
    moved = *std::move(other);
    EXPECT_EQ(moved.Size(), 100u);
  }
  const int after = open("/dev/null", O_RDONLY);
  close(after);
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace ithaca::server
