#include "client/shared_memory_object.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace ithaca::client {
namespace {

bool Exists(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDONLY, 0);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

TEST(SharedMemoryObjectTest, OthersSeeWhatIsWrittenAndItGoesWithItsOwner) {
  std::string name;
  {
    auto object = SharedMemoryObject::Create(100000);
    ASSERT_TRUE(object.ok()) << object.status();
    name = object->name();
    EXPECT_THAT(name,
                ::testing::StartsWith(absl::StrCat("/ithaca-", getpid(), "-")));
    EXPECT_EQ(object->bytes().size(), 100000u);
    std::memset(object->bytes().data(), 7, 100000);
    const int fd = shm_open(name.c_str(), O_RDONLY, 0);
    ASSERT_GE(fd, 0);
    char last = 0;
    EXPECT_EQ(pread(fd, &last, 1, 99999), 1);
    EXPECT_EQ(last, 7);
    close(fd);
  }
  EXPECT_FALSE(Exists(name));
}

TEST(SharedMemoryObjectTest, MoreThanThereIsRoomForIsRefused) {
  const auto object = SharedMemoryObject::Create(uint64_t{1} << 60);
  EXPECT_EQ(object.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(object.status().message(),
              ::testing::HasSubstr(absl::StrCat(uint64_t{1} << 60)));
}

// A child that ends without destructors leaves an object as a killed process
// does.
TEST(SharedMemoryObjectTest, WhatADeadProcessLeftIsRemovedAndNothingElse) {
  auto mine = SharedMemoryObject::Create(4096);
  ASSERT_TRUE(mine.ok());
  int names[2];
  ASSERT_EQ(pipe(names), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto left = SharedMemoryObject::Create(4096);
    const bool told = left.ok() && write(names[1], left->name().data(),
                                         left->name().size()) > 0;
    _exit(told ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  char name[64] = {};
  ASSERT_GT(read(names[0], name, sizeof(name) - 1), 0);
  close(names[0]);
  close(names[1]);
  EXPECT_TRUE(Exists(name));
  // Not of our pattern, though its number is of no process.
  const std::string foreign = absl::StrCat("/ithaca-", child, "-weights");
  const int fd = shm_open(foreign.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  close(fd);

  EXPECT_GE(RemoveAbandonedObjects(), 1);
  EXPECT_FALSE(Exists(name));
  EXPECT_TRUE(Exists(mine->name()));
  EXPECT_TRUE(Exists(foreign));
  shm_unlink(foreign.c_str());
}

}  // namespace
}  // namespace ithaca::client
