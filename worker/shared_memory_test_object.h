#ifndef ITHACA_WORKER_SHARED_MEMORY_TEST_OBJECT_H_
#define ITHACA_WORKER_SHARED_MEMORY_TEST_OBJECT_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "gtest/gtest.h"
#include "worker/region.h"

namespace ithaca {

// For tests: a client's shared memory object, gone with this.
class SharedMemoryTestObject {
 public:
  explicit SharedMemoryTestObject(const std::string& bytes)
      : name_("/ithaca-test-" + std::to_string(getpid()) + "-" +
              std::to_string(next_++)),
        descriptor_(shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)) {
    EXPECT_GE(descriptor_, 0);
    Write(0, bytes);
  }
  ~SharedMemoryTestObject() {
    shm_unlink(name_.c_str());
    close(descriptor_);
  }
  SharedMemoryTestObject(const SharedMemoryTestObject&) = delete;
  SharedMemoryTestObject& operator=(const SharedMemoryTestObject&) = delete;

  void Write(int64_t offset, const std::string& bytes) {
    EXPECT_EQ(pwrite(descriptor_, bytes.data(), bytes.size(), offset),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string Bytes() const {
    std::string bytes(static_cast<size_t>(size()), '\0');
    EXPECT_EQ(pread(descriptor_, bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
    return bytes;
  }
  void Truncate(int64_t size) { EXPECT_EQ(ftruncate(descriptor_, size), 0); }
  int64_t size() const { return Stat().st_size; }

  SharedMemoryObject Object(uint64_t offset = 0) const {
    return {name_, offset, Stat().st_dev, Stat().st_ino};
  }

 private:
  struct stat Stat() const {
    struct stat found = {};
    EXPECT_EQ(fstat(descriptor_, &found), 0);
    return found;
  }

  static inline std::atomic<int> next_{0};
  const std::string name_;
  const int descriptor_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_SHARED_MEMORY_TEST_OBJECT_H_
