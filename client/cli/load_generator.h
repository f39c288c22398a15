#ifndef ITHACA_CLIENT_CLI_LOAD_GENERATOR_H_
#define ITHACA_CLIENT_CLI_LOAD_GENERATOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "client/attention_client.h"

namespace ithaca::client {

struct LoadOptions {
  int concurrency = 1;  // calls in flight at any time
  // The run ends after so many calls, or after so long; at least one is set.
  std::optional<int64_t> calls = {};
  std::optional<absl::Duration> duration = {};
  absl::Duration call_timeout = absl::Seconds(300);
  // Tensors of Client::AllocateTensor: in shared memory before a call begins.
  bool allocated = false;
  // No call is started after so many have failed.
  int64_t max_failures = 10;
};

struct CallSample {
  double client_seconds = 0;  // from the call to its callback
  ithaca::v1::ExecutionReport report = {};
  Plane plane = Plane::kUnary;
};

struct LoadResult {
  std::vector<CallSample> samples;  // of calls that succeeded
  std::map<absl::StatusCode, int64_t> failures;
  absl::Status first_failure;
  double seconds = 0;  // from the first start to the last end

  int64_t NumFailures() const;
};

struct LoadProgress {
  double fraction = 0;  // of the calls or of the time, whichever is further
  int64_t calls = 0;
  int64_t failures = 0;
};

// A closed loop: each of `concurrency` slots starts its next call when its
// last one ends. All send the same tensors; each has an output of its own.
// `on_progress` is called some times a second, on the caller's thread.
LoadResult RunLoad(Client* client, const AttentionArguments& call,
                   const LoadOptions& options,
                   const std::function<void(const LoadProgress&)>& on_progress);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_LOAD_GENERATOR_H_
