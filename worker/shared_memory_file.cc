#include "worker/shared_memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca {
namespace {

constexpr mode_t kNoMode = 0;  // nothing is created

// Between looks at the object's size while it is written.
constexpr int64_t kWriteBytes = int64_t{4} << 20;

absl::Status Shrank(int64_t expected, int64_t actual) {
  return absl::FailedPreconditionError(
      absl::StrCat("the shared memory object shrank: its region ends at byte ",
                   expected, ", the object at ", actual));
}

absl::Status CannotOpen(const SharedMemoryObject& object, int error) {
  const std::string message = absl::StrCat("shared memory object ", object.name,
                                           ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case EINVAL:
    case ENAMETOOLONG:
      return absl::NotFoundError(message);
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

}  // namespace

absl::StatusOr<SharedMemoryFile> SharedMemoryFile::Open(
    const SharedMemoryObject& object, uint64_t byte_size) {
  // It sets FD_CLOEXEC.
  const int descriptor = shm_open(object.name.c_str(), O_RDWR, kNoMode);
  if (descriptor < 0) return CannotOpen(object, errno);
  struct stat found = {};
  const bool known = fstat(descriptor, &found) == 0;
  const auto size = static_cast<uint64_t>(std::max<off_t>(found.st_size, 0));
  absl::Status status;
  if (!known || found.st_dev != object.device_number ||
      found.st_ino != object.inode) {
    status = absl::NotFoundError(
        absl::StrCat("shared memory object ", object.name,
                     " is another one here than where it was registered"));
  } else if (!S_ISREG(found.st_mode)) {
    status = absl::InvalidArgumentError(
        absl::StrCat(object.name, " is no shared memory object"));
  } else if (object.offset > size || byte_size > size - object.offset) {
    status = absl::InvalidArgumentError(
        absl::StrCat("shared memory object ", object.name, " has ", size,
                     " bytes, not ", byte_size, " from byte ", object.offset));
  }
  if (!status.ok()) {
    close(descriptor);
    return status;
  }
  return SharedMemoryFile(descriptor, static_cast<int64_t>(object.offset),
                          static_cast<int64_t>(byte_size));
}

SharedMemoryFile::SharedMemoryFile(int descriptor, int64_t begin,
                                   int64_t byte_size)
    : descriptor_(descriptor), begin_(begin), byte_size_(byte_size) {}

SharedMemoryFile::SharedMemoryFile(SharedMemoryFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      begin_(other.begin_),
      byte_size_(other.byte_size_) {}

SharedMemoryFile::~SharedMemoryFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status SharedMemoryFile::Check() const {
  struct stat found = {};
  if (fstat(descriptor_, &found) != 0) {
    return absl::InternalError(absl::StrCat("fstat: ", std::strerror(errno)));
  }
  const int64_t end = begin_ + byte_size_;
  return found.st_size < end ? Shrank(end, found.st_size) : absl::OkStatus();
}

absl::Status SharedMemoryFile::Read(void* dst, int64_t offset,
                                    int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    const int64_t at = begin_ + offset + done;
    const ssize_t count = pread(descriptor_, static_cast<char*>(dst) + done,
                                static_cast<size_t>(bytes - done), at);
    if (count > 0) {
      done += count;
    } else if (count == 0) {
      return Shrank(begin_ + byte_size_, at);
    } else if (errno != EINTR) {
      return absl::InternalError(
          absl::StrCat("reading shared memory: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

absl::Status SharedMemoryFile::Write(int64_t offset, const void* src,
                                     int64_t bytes) const {
  for (int64_t done = 0; done < bytes;) {
    // Writing past the end would make the object larger.
    if (absl::Status whole = Check(); !whole.ok()) return whole;
    const ssize_t count =
        pwrite(descriptor_, static_cast<const char*>(src) + done,
               static_cast<size_t>(std::min(kWriteBytes, bytes - done)),
               begin_ + offset + done);
    if (count >= 0) {
      done += count;
    } else if (errno == ENOSPC || errno == ENOMEM) {
      // Pages that nobody has touched are only now made.
      return absl::ResourceExhaustedError(
          absl::StrCat("writing shared memory: ", std::strerror(errno)));
    } else if (errno != EINTR) {
      return absl::InternalError(
          absl::StrCat("writing shared memory: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace ithaca
