#include "server/shared_memory_object.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace ithaca::server {

namespace {

absl::Status OpenError(const std::string& name, int error) {
  const std::string message =
      absl::StrCat("object_name: the shared memory object ", name,
                   " cannot be opened: ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EISDIR:
    case ELOOP:  // shm_open follows no link
    case EINVAL:
    case ENAMETOOLONG:
    case ENXIO:
      return absl::InvalidArgumentError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

}  // namespace

absl::StatusOr<SharedMemoryObject> SharedMemoryObject::Open(
    const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_NONBLOCK, 0);
  if (fd < 0) return OpenError(name, errno);
  struct stat status {};
  if (fstat(fd, &status) != 0) {
    const int error = errno;
    close(fd);
    return OpenError(name, error);
  }
  SharedMemoryObject object(name, fd, status.st_dev, status.st_ino);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("object_name: expected a shared memory object, got ", name,
                     ", which is something else"));
  }
  return object;
}

SharedMemoryObject::SharedMemoryObject(std::string name, int fd,
                                       uint64_t device_number, uint64_t inode)
    : name_(std::move(name)),
      fd_(fd),
      device_number_(device_number),
      inode_(inode) {}

SharedMemoryObject::SharedMemoryObject(SharedMemoryObject&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      device_number_(other.device_number_),
      inode_(other.inode_) {}

SharedMemoryObject& SharedMemoryObject::operator=(
    SharedMemoryObject&& other) noexcept {
  std::swap(name_, other.name_);
  std::swap(fd_, other.fd_);
  std::swap(device_number_, other.device_number_);
  std::swap(inode_, other.inode_);
  return *this;
}

SharedMemoryObject::~SharedMemoryObject() {
  if (fd_ >= 0) close(fd_);
}

uint64_t SharedMemoryObject::Size() const {
  struct stat status {};
  if (fstat(fd_, &status) != 0 || status.st_size < 0) return 0;
  return static_cast<uint64_t>(status.st_size);
}

void SharedMemoryObject::Unlink() const {
  const int fd = shm_open(name_.c_str(), O_RDONLY | O_NONBLOCK, 0);
  if (fd < 0) return;
  struct stat status {};
  const bool same = fstat(fd, &status) == 0 &&
                    status.st_dev == device_number_ && status.st_ino == inode_;
  close(fd);
  if (same) shm_unlink(name_.c_str());
}

}  // namespace ithaca::server
