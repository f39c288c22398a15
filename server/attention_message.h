#ifndef ITHACA_SERVER_ATTENTION_MESSAGE_H_
#define ITHACA_SERVER_ATTENTION_MESSAGE_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ithaca/v1/attention.pb.h"
#include "server/tensor_bytes.h"

// AttentionRequest and AttentionResponse as bytes, without a copy of the
// tensors in them. Pure functions.

namespace ithaca::server {

// An AttentionRequest whose tensors' `data` was left where it was received.
struct ReceivedRequest {
  // Each Tensor.data in it is empty; source_case() still tells data from
  // memory and from nothing.
  ithaca::v1::AttentionRequest message;
  // The data of message.query() and so on; empty unless source_case() is
  // kData.
  CallTensors tensors;
};

// Takes and refuses what the generated parser does (fields in any order,
// sub-messages merged, the last of a oneof), unknown fields dropped. `bytes`
// is the whole message.
// Errors: kInvalidArgument (not a message of this type; it may have been cut
// off), kResourceExhausted (more than 1 MiB of it is not tensor data).
// *request is then of no use.
absl::Status ParseAttentionRequest(const TensorBytes& bytes,
                                   ReceivedRequest* request);

// The response with `output` as its tensor's data, by reference.
grpc::ByteBuffer MakeAttentionResponse(
    const std::string& request_id, ithaca::v1::DataType dtype,
    const std::vector<int64_t>& output_shape, const TensorBytes& output,
    const ithaca::v1::ExecutionReport& report);

// The same with the output in a region.
grpc::ByteBuffer MakeAttentionResponse(
    const std::string& request_id, ithaca::v1::DataType dtype,
    const std::vector<int64_t>& output_shape,
    const ithaca::v1::MemorySlice& output,
    const ithaca::v1::ExecutionReport& report);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_ATTENTION_MESSAGE_H_
