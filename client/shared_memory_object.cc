#include "client/shared_memory_object.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace ithaca::client {
namespace {

// Where Linux keeps the objects.
constexpr char kFolder[] = "/dev/shm";
constexpr std::string_view kPrefix = "ithaca-";
constexpr size_t kRandomDigits = 16;
constexpr int kAttempts = 16;

std::string NewName() {
  std::random_device random;
  return absl::StrFormat("/ithaca-%d-%08x%08x", getpid(), random(), random());
}

absl::Status ErrnoStatus(const char* what, uint64_t byte_size, int error) {
  const std::string message = absl::StrCat(
      "shared memory of ", byte_size, " bytes: ", what, ": ", strerror(error));
  if (error == ENOSPC || error == ENOMEM || error == EFBIG) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::FailedPreconditionError(message);
}

// An empty object that is ours: locked, and still under its name.
int CreateLocked(std::string* name) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    *name = NewName();
    const int fd =
        shm_open(name->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return -1;
    // Between the two calls somebody may have taken it for an abandoned one.
    struct stat status = {};
    if (flock(fd, LOCK_SH) == 0 && fstat(fd, &status) == 0 &&
        status.st_nlink > 0) {
      return fd;
    }
    close(fd);
  }
  errno = EEXIST;
  return -1;
}

// The process that made the object of this file name; 0 if it is not one.
int MakerOf(std::string_view file) {
  if (!file.starts_with(kPrefix)) return 0;
  file.remove_prefix(kPrefix.size());
  const size_t dash = file.find('-');
  if (dash == std::string_view::npos) return 0;
  const std::string_view random = file.substr(dash + 1);
  int pid = 0;
  if (random.size() != kRandomDigits ||
      random.find_first_not_of("0123456789abcdef") != std::string_view::npos ||
      !absl::SimpleAtoi(absl::string_view(file.data(), dash), &pid)) {
    return 0;
  }
  return pid;
}

bool RemoveIfAbandoned(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return false;
  // Process numbers say nothing across containers; the lock does.
  const bool removed =
      flock(fd, LOCK_EX | LOCK_NB) == 0 && shm_unlink(name.c_str()) == 0;
  close(fd);
  return removed;
}

}  // namespace

absl::StatusOr<SharedMemoryObject> SharedMemoryObject::Create(
    uint64_t byte_size) {
  std::string name;
  const int fd = CreateLocked(&name);
  if (fd < 0) return ErrnoStatus("shm_open", byte_size, errno);
  // Reserved now: a full file system would else be a SIGBUS later.
  const int error = posix_fallocate(fd, 0, static_cast<off_t>(byte_size));
  void* memory = MAP_FAILED;
  if (error == 0) {
    memory = mmap(nullptr, byte_size, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_POPULATE, fd, 0);
  }
  if (memory == MAP_FAILED) {
    const absl::Status status = error != 0
                                    ? ErrnoStatus("reserve", byte_size, error)
                                    : ErrnoStatus("mmap", byte_size, errno);
    shm_unlink(name.c_str());
    close(fd);
    return status;
  }
  return SharedMemoryObject(std::move(name), fd,
                            {static_cast<std::byte*>(memory), byte_size});
}

SharedMemoryObject::SharedMemoryObject(std::string name, int fd,
                                       std::span<std::byte> bytes)
    : name_(std::move(name)), fd_(fd), bytes_(bytes) {}

SharedMemoryObject::SharedMemoryObject(SharedMemoryObject&& other) noexcept
    : name_(std::exchange(other.name_, {})),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(std::exchange(other.bytes_, {})) {}

SharedMemoryObject::~SharedMemoryObject() {
  if (name_.empty()) return;
  munmap(bytes_.data(), bytes_.size());
  shm_unlink(name_.c_str());
  close(fd_);
}

int RemoveAbandonedObjects() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(kFolder), closedir);
  if (folder == nullptr) return 0;
  int removed = 0;
  while (const dirent* entry = readdir(folder.get())) {
    const int maker = MakerOf(entry->d_name);
    if (maker <= 0 || kill(maker, 0) == 0 || errno != ESRCH) continue;
    removed += RemoveIfAbandoned(absl::StrCat("/", entry->d_name)) ? 1 : 0;
  }
  return removed;
}

}  // namespace ithaca::client
