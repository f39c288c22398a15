#include "worker/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ithaca {
namespace {

// Empty if there is no way there: `errno` says why.
std::string SourceAddress(const addrinfo& target) {
  const int fd = socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  std::string address;
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  char host[NI_MAXHOST];
  // Connecting a datagram socket chooses the route and its source address.
  if (connect(fd, target.ai_addr, target.ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0 &&
      getnameinfo(reinterpret_cast<sockaddr*>(&own), size, host, sizeof(host),
                  nullptr, 0, NI_NUMERICHOST) == 0) {
    address = host;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return address;
}

}  // namespace

absl::StatusOr<std::string> LocalAddressTowards(const std::string& target) {
  const size_t colon = target.rfind(':');
  if (colon == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected HOST:PORT, got '", target, "'"));
  }
  std::string host = target.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), target.substr(colon + 1).c_str(),
                                &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve ", target, ": ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 &freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    std::string address = SourceAddress(*one);
    if (!address.empty()) return address;
  }
  return absl::UnavailableError(
      absl::StrCat("no way to ", target, ": ", strerror(errno)));
}

}  // namespace ithaca
