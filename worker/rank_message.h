#ifndef ITHACA_WORKER_RANK_MESSAGE_H_
#define ITHACA_WORKER_RANK_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "worker/host_buffer_pool.h"

// RunAttention's messages between gRPC's slices and memory, without a copy of
// the tensors in between. On the wire both are plain protocol buffers.

namespace ithaca {

// A RunAttentionRequest whose tensors stay in the slices they came in.
struct RankRequest {
  internal::v1::AttentionCall call;
  // The bytes of `tensors`, in order; they lie in `slices`.
  std::vector<std::string_view> tensors;
  std::vector<grpc::Slice> slices;
};

// Whatever order the fields come in; unknown ones are skipped; the last
// `tensors` counts, and `call`s are merged, as the generated parser does.
// Errors: kInvalidArgument (not a RunAttentionRequest).
absl::Status ParseRankRequest(const grpc::ByteBuffer& message,
                              RankRequest* request);

// A RunAttentionResponse with the first `bytes` of `output`, which gRPC keeps
// until they are sent.
grpc::ByteBuffer FrameRankResponse(const internal::v1::RankExecution& execution,
                                   std::shared_ptr<const HostBuffer> output,
                                   int64_t bytes);

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_MESSAGE_H_
