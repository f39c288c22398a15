#ifndef ITHACA_SERVER_HTTP_ENDPOINT_H_
#define ITHACA_SERVER_HTTP_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ithaca::server {

// GET /livez, /readyz and /metrics over plain HTTP, for probes and scrapers.
// It answers from a few threads of its own, whatever the calls do.
class HttpEndpoint {
 public:
  // Called from several threads at once, until the endpoint's end.
  struct Handlers {
    std::function<bool()> ready;           // 200 or 503 on /readyz
    std::function<std::string()> metrics;  // the text of /metrics
  };

  // Listens on "HOST:PORT": HOST an IPv4 address, an IPv6 one in brackets,
  // "localhost" or nothing (every address), PORT 0 for any free one.
  // Errors, naming the address: kInvalidArgument (it is none), kUnavailable
  // (it can't be listened on).
  static absl::StatusOr<std::unique_ptr<HttpEndpoint>> Start(
      const std::string& address, Handlers handlers);

  virtual ~HttpEndpoint() = default;  // answers what has begun, then closes
  virtual int port() const = 0;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_HTTP_ENDPOINT_H_
