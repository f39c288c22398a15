#ifndef ITHACA_SERVER_OUTPUT_MERGE_H_
#define ITHACA_SERVER_OUTPUT_MERGE_H_

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "core/sequence_parallel_plan.h"
#include "server/tensor_bytes.h"
#include "server/token_axis.h"

namespace ithaca::server {

// The ranks' outputs, each in the caller's order, joined into the caller's
// tensor while they come: for each batch element the image rows of rank 0, of
// rank 1 and so on, and the text rows of the last rank before or after them. It
// holds what has come and was not yet taken. Not thread-safe.
class OutputMerge {
 public:
  // chunked: whether the output comes in chunks at all; else it has no bytes.
  OutputMerge(const SequenceParallelPlan& plan, bool chunked);

  // Bytes of the whole output, and of one rank's.
  int64_t total_bytes() const { return total_bytes_; }
  int64_t rank_bytes(int rank) const;

  // Adds the rank's next bytes. Errors: kInternal (not at `offset`, or more
  // than the rank has); nothing is added then.
  absl::Status Append(int rank, uint64_t offset, const TensorBytes& bytes);

  // Whose bytes are missing first, in the caller's order; nullopt: nobody's.
  std::optional<int> WantedRank() const;

  // Bytes that have come and were not taken, in whatever place.
  int64_t buffered() const { return buffered_; }

  // The next bytes of the output, as far as they have come, at most so many.
  TensorBytes Take(int64_t most);
  int64_t taken() const { return taken_; }

 private:
  struct Segment {
    size_t rank = 0;
    int64_t bytes = 0;
  };
  // A place in the output: a segment, and how many of its bytes lie behind.
  struct Cursor {
    int64_t segment = 0;
    int64_t behind = 0;
  };
  struct Source {
    int64_t bytes = 0;               // the rank's in all
    int64_t received = 0;            // and so far
    int64_t passed = 0;              // by the frontier
    std::deque<grpc::Slice> pieces;  // not taken
  };

  Segment At(int64_t index) const;
  void AdvanceFrontier();

  const int64_t num_segments_;
  const TokenAxis axis_;
  const size_t text_rank_;
  std::vector<int64_t> share_bytes_;  // of a batch element, by rank
  std::vector<Source> sources_;       // by rank
  int64_t total_bytes_ = 0;
  int64_t buffered_ = 0;
  int64_t taken_ = 0;
  int64_t contiguous_ = 0;  // bytes before the frontier
  Cursor next_;             // to be taken
  Cursor frontier_;         // first byte that is missing
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_OUTPUT_MERGE_H_
