#ifndef ITHACA_WORKER_RANK_STREAM_MESSAGE_H_
#define ITHACA_WORKER_RANK_STREAM_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "worker/host_buffer_pool.h"
#include "worker/rank_tensors.h"

// StreamAttention's messages between gRPC's slices and memory, without a copy
// of the tensors in between. On the wire both are plain protocol buffers.

namespace ithaca {

// A RankChunk whose data stays in the slices it came in.
struct StagedChunk {
  uint64_t offset = 0;
  std::vector<std::string_view> data;
};

// A StreamRankRequest.
struct StreamPart {
  std::variant<std::monostate, internal::v1::AttentionCall, StagedChunk,
               internal::v1::RunStaged>
      part;
  std::vector<grpc::Slice> slices;  // where a chunk's data lies
};

// Fields come in any order, unknown ones are skipped. Stricter than the
// generated parser: one part, and a chunk's fields once each at most.
// Errors: kInvalidArgument (not a StreamRankRequest).
absl::Status ParseStreamPart(const grpc::ByteBuffer& message, StreamPart* part);

// The first StreamRankResponse.
grpc::ByteBuffer FrameExecution(const internal::v1::RankExecution& execution);

// A StreamRankResponse with a chunk of the output: these ranges of `output`,
// one after the other, which gRPC keeps until they are sent.
grpc::ByteBuffer FrameChunk(uint64_t offset,
                            const std::shared_ptr<const HostBuffer>& output,
                            absl::Span<const ByteRange> ranges);

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_STREAM_MESSAGE_H_
