#ifndef ITHACA_SERVER_SHARED_MEMORY_OBJECT_H_
#define ITHACA_SERVER_SHARED_MEMORY_OBJECT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace ithaca::server {

// A POSIX shared memory object of a client's, held open but not mapped: the
// coordinator never touches its bytes. Movable; otherwise thread-safe.
class SharedMemoryObject {
 public:
  // name: of shm_open, with its leading slash.
  // Errors: kNotFound (there is none of this name), kInvalidArgument (it is no
  // plain file), kResourceExhausted (this process has no descriptor left),
  // kFailedPrecondition (it may not be opened for reading and writing).
  static absl::StatusOr<SharedMemoryObject> Open(const std::string& name);

  SharedMemoryObject(SharedMemoryObject&& other) noexcept;
  SharedMemoryObject& operator=(SharedMemoryObject&& other) noexcept;
  ~SharedMemoryObject();

  const std::string& name() const { return name_; }
  // Which object it is, whatever its name stands for by now.
  uint64_t device_number() const { return device_number_; }
  uint64_t inode() const { return inode_; }

  // In bytes, now: its owner may change it at any time. 0 if it can't be told.
  uint64_t Size() const;

  // Removes the name if it still stands for this object. The memory stays for
  // as long as someone has it open or mapped.
  void Unlink() const;

 private:
  SharedMemoryObject(std::string name, int fd, uint64_t device_number,
                     uint64_t inode);

  std::string name_;
  int fd_;  // -1: moved from
  uint64_t device_number_;
  uint64_t inode_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_SHARED_MEMORY_OBJECT_H_
