#ifndef ITHACA_WORKER_METRICS_ENDPOINT_H_
#define ITHACA_WORKER_METRICS_ENDPOINT_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace ithaca {

// GET /metrics and /livez of one worker, over plain HTTP, for scrapers and
// probes. Readiness is a property of groups: ask the coordinator.
class MetricsEndpoint {
 public:
  // Listens on "HOST:PORT" (HOST an address, [IPv6] in brackets, or nothing;
  // PORT 0: any free one). `metrics` is called from any of its threads, until
  // the endpoint's end. Errors: kInvalidArgument (no such address),
  // kUnavailable (cannot listen there).
  static absl::StatusOr<std::unique_ptr<MetricsEndpoint>> Start(
      const std::string& address, std::function<std::string()> metrics);

  virtual ~MetricsEndpoint() = default;
  virtual int port() const = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_METRICS_ENDPOINT_H_
