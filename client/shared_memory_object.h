#ifndef ITHACA_CLIENT_SHARED_MEMORY_OBJECT_H_
#define ITHACA_CLIENT_SHARED_MEMORY_OBJECT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace ithaca::client {

// A POSIX shared memory object of our own, "/ithaca-PID-RANDOM": mapped here,
// removed when this goes. Its room is reserved: no access to it can fail.
//
// A process that is killed leaves its objects behind. They are locked (flock)
// for as long as their maker lives, so that the next one knows them.
class SharedMemoryObject {
 public:
  // Errors: kResourceExhausted (no room for so many bytes),
  // kFailedPrecondition (this host has no such memory for us).
  static absl::StatusOr<SharedMemoryObject> Create(uint64_t byte_size);

  SharedMemoryObject(SharedMemoryObject&& other) noexcept;
  SharedMemoryObject& operator=(SharedMemoryObject&& other) = delete;
  ~SharedMemoryObject();

  const std::string& name() const { return name_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SharedMemoryObject(std::string name, int fd, std::span<std::byte> bytes);

  std::string name_;  // empty: moved from
  int fd_ = -1;       // holds the lock
  std::span<std::byte> bytes_;
};

// Removes objects whose makers are gone. Returns how many.
int RemoveAbandonedObjects();

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_SHARED_MEMORY_OBJECT_H_
