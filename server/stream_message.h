#ifndef ITHACA_SERVER_STREAM_MESSAGE_H_
#define ITHACA_SERVER_STREAM_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>

#include "absl/status/status.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "ithaca/v1/attention.pb.h"
#include "server/tensor_bytes.h"

// The messages of both StreamAttention RPCs, the public one and the ranks', as
// bytes: what is tensor data in them stays where it was received. Pure
// functions.

namespace ithaca::server {

// One StreamAttentionRequest.
struct ClientPart {
  enum class Kind : uint8_t { kNone, kRequest, kChunk };
  Kind kind = Kind::kNone;
  TensorBytes request;  // of kRequest: a whole AttentionRequest message
  ithaca::v1::TensorRole role = ithaca::v1::TENSOR_ROLE_UNSPECIFIED;
  uint64_t offset = 0;
  TensorBytes data;
};

// Takes and refuses what the generated parser does; what is in `request` is
// not looked at. Errors: kInvalidArgument.
absl::Status ParseClientPart(const grpc::ByteBuffer& message, ClientPart* part);

// A StreamAttentionResponse with `response`.
grpc::ByteBuffer MakeClientResponse(
    const ithaca::v1::AttentionResponse& response);
// A StreamAttentionResponse with a chunk of the output.
grpc::ByteBuffer MakeClientChunk(int64_t offset, const TensorBytes& data);

// A StreamRankRequest with `open`, with a chunk, with `run`.
grpc::ByteBuffer MakeRankOpen(const ithaca::internal::v1::AttentionCall& call);
grpc::ByteBuffer MakeRankChunk(int64_t offset, const TensorBytes& data);
grpc::ByteBuffer MakeRankRun(uint64_t call_number);

// One StreamRankResponse.
struct RankAnswerPart {
  enum class Kind : uint8_t { kNone, kExecution, kChunk };
  Kind kind = Kind::kNone;
  ithaca::internal::v1::RankExecution execution;
  uint64_t offset = 0;
  TensorBytes data;
};

// Errors: kInternal (not such a message).
absl::Status ParseRankAnswerPart(const grpc::ByteBuffer& message,
                                 RankAnswerPart* part);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_STREAM_MESSAGE_H_
