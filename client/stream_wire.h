#ifndef ITHACA_CLIENT_STREAM_WIRE_H_
#define ITHACA_CLIENT_STREAM_WIRE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/attention_call.h"
#include "client/attention_wire.h"

// The messages of a StreamAttention call, without protobuf ever holding a
// tensor's bytes.

namespace ithaca::client {

// What a call sends, message by message: the request, then the tensors that
// are not in a region, in chunks of 1 MiB.
//
// Cost: copies no tensor bytes, but for tensors of some kilobytes.
class StreamRequestWriter {
 public:
  StreamRequestWriter(const AttentionArguments& arguments,
                      const SliceMaker& make_slice);

  // The next message; nullopt after the last.
  std::optional<grpc::ByteBuffer> Next();
  // Lets go of the tensors.
  void Clear();

 private:
  struct Part {
    ithaca::v1::TensorRole role;
    grpc::Slice slice;
  };

  std::optional<grpc::ByteBuffer> request_;
  std::vector<Part> parts_;
  size_t part_ = 0;
  size_t offset_ = 0;  // in parts_[part_]
};

// Puts together what a call receives: the response, then the output's bytes.
//
// Cost: copies the output once, each chunk as it comes.
class StreamResponseReader {
 public:
  explicit StreamResponseReader(ExpectedOutput expected);

  // Takes the next message, and empties it.
  // Errors: kInternal (no part of a response, or not the one that comes next).
  absl::Status Take(grpc::ByteBuffer* message);

  // After the last message.
  // Errors: kInternal (the output is not whole).
  absl::StatusOr<AttentionResult> Finish();

 private:
  absl::Status TakeResponse(const ithaca::v1::AttentionResponse& response);

  const ExpectedOutput expected_;
  std::optional<AttentionResult> result_;  // once the response is there
  uint64_t received_ = 0;                  // bytes of the output
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_STREAM_WIRE_H_
