#ifndef ITHACA_CLIENT_ATTENTION_WIRE_H_
#define ITHACA_CLIENT_ATTENTION_WIRE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <functional>

#include "absl/status/statusor.h"
#include "client/attention_call.h"

// AttentionRequest and AttentionResponse on the wire, without protobuf ever
// holding a tensor: the bytes are those protobuf would make and take, but the
// tensors' own lie in the caller's memory.
//
// Cost: encoding copies no tensor bytes; decoding copies the output's once.

namespace ithaca::client {

// A slice over a view's bytes; who keeps them alive is the maker's choice.
using SliceMaker = std::function<grpc::Slice(const TensorView&)>;

grpc::ByteBuffer EncodeAttentionRequest(const AttentionArguments& arguments,
                                        const SliceMaker& make_slice);

// Empties `message`. `query` says what the output has to be; `destination` is
// AttentionArguments::output.
// Errors: kInternal (no AttentionResponse, or an output that is not the
// query's shape and dtype; names the two).
absl::StatusOr<AttentionResult> DecodeAttentionResponse(
    grpc::ByteBuffer* message, const TensorView& query,
    std::span<std::byte> destination);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ATTENTION_WIRE_H_
