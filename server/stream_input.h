#ifndef ITHACA_SERVER_STREAM_INPUT_H_
#define ITHACA_SERVER_STREAM_INPUT_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ithaca/v1/attention.pb.h"
#include "server/stream_scatter.h"

namespace ithaca::server {

// The judge of a stream's chunks: which bytes of which tensor come next. The
// tensors may alternate; each one's chunks come in order, without gaps. Not
// thread-safe.
class StreamInput {
 public:
  explicit StreamInput(const StreamScatter& scatter);

  // The tensor that a chunk's bytes belong to; they count as come.
  // Errors: kInvalidArgument, naming role, expected and actual offset: of a
  // role that comes in no chunks, empty, out of order, or past the end.
  absl::StatusOr<InputRole> Accept(ithaca::v1::TensorRole role, uint64_t offset,
                                   int64_t size);

  // Every byte has come.
  bool complete() const;

  // What a stream is told that ends here. REQUIRES: !complete().
  // kInvalidArgument, naming what is missing.
  absl::Status Missing() const;

 private:
  std::array<int64_t, 3> expected_;  // bytes, by InputRole
  std::array<int64_t, 3> received_ = {};
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_STREAM_INPUT_H_
