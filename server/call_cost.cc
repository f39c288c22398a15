#include "server/call_cost.h"

#include <cstdint>
#include <string_view>

#include "absl/time/time.h"
#include "core/attention_call.h"

namespace ithaca::server {

namespace {

// Far below what is measured (CPU: some GFLOP/s a core; an H200: hundreds of
// TFLOP/s; local transport: 0.3 GB/s), so that contention does not count as a
// fault.
constexpr double kSlowestCpuOperationsPerSecond = 2.5e8;
constexpr double kSlowestGpuOperationsPerSecond = 1e12;
constexpr double kSlowestTransferBytesPerSecond = 5e7;

}  // namespace

double AttentionOperations(const AttentionShape& shape) {
  return 4.0 * static_cast<double>(shape.batch) *
         static_cast<double>(shape.num_heads) *
         static_cast<double>(shape.query_tokens()) *
         static_cast<double>(shape.key_tokens()) *
         static_cast<double>(shape.head_dim);
}

absl::Duration CallTimeLimit(const AttentionShape& shape, int world_size,
                             std::string_view device,
                             absl::Duration collective_timeout) {
  const double rate = device.substr(0, 3) == "cpu"
                          ? kSlowestCpuOperationsPerSecond
                          : kSlowestGpuOperationsPerSecond;
  // Heads are dealt out whole: the busiest rank has the rounded-up share.
  const int64_t busiest = (shape.num_heads + world_size - 1) / world_size;
  const double compute = AttentionOperations(shape) *
                         static_cast<double>(busiest) /
                         static_cast<double>(shape.num_heads) / rate;
  const double transfer =
      static_cast<double>(TotalTensorBytes(shape).value_or(0)) /
      kSlowestTransferBytesPerSecond;
  return collective_timeout + absl::Seconds(compute + transfer);
}

}  // namespace ithaca::server
