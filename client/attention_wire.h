#ifndef ITHACA_CLIENT_ATTENTION_WIRE_H_
#define ITHACA_CLIENT_ATTENTION_WIRE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
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

// The request without its tensors' data: dtypes, shapes, and the regions of
// those that lie in one.
ithaca::v1::AttentionRequest RequestWithoutData(
    const AttentionArguments& arguments);

// A region of the call's, null if it has none. All are of one lease.
const MemoryRegion* AnyRegionOf(const AttentionArguments& arguments);

// A whole request. Tensors in a region are not in it.
grpc::ByteBuffer EncodeAttentionRequest(const AttentionArguments& arguments,
                                        const SliceMaker& make_slice);

// What an output has to be, and where its bytes go.
struct ExpectedOutput {
  ithaca::v1::DataType dtype = ithaca::v1::DATA_TYPE_UNSPECIFIED;
  std::vector<int64_t> shape = {};
  uint64_t byte_size = 0;
  std::span<std::byte> destination = {};  // empty: memory of its own
  RegionView region = {};                 // not null: the workers write it
};

ExpectedOutput OutputOf(const AttentionArguments& arguments);

// The tensor that is to hold the output; its bytes are not written yet.
Tensor MakeOutput(const ExpectedOutput& expected);

// OK if the response's output has the dtype and shape, and has data inside or
// not as `with_data` says. Errors: kInternal, naming both sides.
absl::Status CheckOutput(const ithaca::v1::Tensor& output, bool has_data,
                         const ExpectedOutput& expected, bool with_data);

// Empties `message`.
// Errors: kInternal (no AttentionResponse, or an output that is not the
// expected one).
absl::StatusOr<AttentionResult> DecodeAttentionResponse(
    grpc::ByteBuffer* message, const ExpectedOutput& expected);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ATTENTION_WIRE_H_
