#include "server/fake_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace ithaca::server {

namespace {

off_t Begin(const internal::v1::RegionSlice& slice) {
  return static_cast<off_t>(slice.region().shared().offset() + slice.offset());
}

int Open(const internal::v1::RegionSlice& slice) {
  return shm_open(slice.region().shared().object_name().c_str(), O_RDWR, 0);
}

}  // namespace

std::string ReadSlice(const internal::v1::RegionSlice& slice) {
  const int fd = Open(slice);
  std::string bytes(slice.byte_size(), '\0');
  const ssize_t count = pread(fd, bytes.data(), bytes.size(), Begin(slice));
  if (fd >= 0) close(fd);
  return count == static_cast<ssize_t>(bytes.size()) ? bytes : "";
}

bool WriteSlice(const internal::v1::RegionSlice& slice,
                const std::string& bytes) {
  const int fd = Open(slice);
  const ssize_t count = pwrite(fd, bytes.data(), bytes.size(), Begin(slice));
  if (fd >= 0) close(fd);
  return count == static_cast<ssize_t>(bytes.size());
}

}  // namespace ithaca::server
