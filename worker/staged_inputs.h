#ifndef ITHACA_WORKER_STAGED_INPUTS_H_
#define ITHACA_WORKER_STAGED_INPUTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/host_buffer_pool.h"

namespace ithaca {

// Bytes that come in chunks, in any order, each to its place in one buffer.
//
// Thread-safety: one thread at a time.
class StagedInputs {
 public:
  // `bytes` of `buffer`. A null buffer: counts what comes and keeps nothing.
  StagedInputs(std::shared_ptr<HostBuffer> buffer, int64_t bytes);

  // Copies the pieces, one after the other, to `offset`.
  // Errors: kInvalidArgument (outside of the buffer, or over bytes that have
  // come before), and nothing is copied.
  absl::Status Put(uint64_t offset, absl::Span<const std::string_view> pieces);

  int64_t bytes() const { return bytes_; }
  int64_t missing() const { return missing_; }
  const std::shared_ptr<HostBuffer>& buffer() const { return buffer_; }

 private:
  const std::shared_ptr<HostBuffer> buffer_;
  const int64_t bytes_;
  int64_t missing_;
  // What has come: begin -> end, neither touching nor overlapping another.
  std::map<int64_t, int64_t> covered_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_STAGED_INPUTS_H_
