#include "server/lease_token.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/escaping.h"

namespace ithaca::server {

namespace {

template <size_t kBytes>
std::string RandomBytes() {
  std::string bytes(kBytes, '\0');
  // Up to 256 bytes come whole, if they come: only the wait for the kernel's
  // first entropy can be interrupted.
  while (getrandom(bytes.data(), kBytes, 0) != static_cast<ssize_t>(kBytes)) {
    if (errno != EINTR) std::abort();
  }
  return bytes;
}

}  // namespace

std::string NewLeaseToken() {
  return absl::BytesToHexString(RandomBytes<16>());
}

uint64_t RandomNumber() {
  uint64_t number = 0;
  for (const char byte : RandomBytes<sizeof(number)>()) {
    number = number << 8 | static_cast<uint8_t>(byte);
  }
  return number;
}

}  // namespace ithaca::server
