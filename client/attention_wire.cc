#include "client/attention_wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <climits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ithaca::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr uint32_t LengthDelimitedTag(int field) {
  return WireFormatLite::MakeTag(field,
                                 WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

// Everything of a tensor field but the bytes themselves, which follow.
void AppendTensorHeader(int field, const TensorView& tensor, std::string* out) {
  v1::Tensor without_data;
  without_data.set_dtype(tensor.dtype);
  without_data.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  std::string inside = without_data.SerializeAsString();
  AppendVarint(LengthDelimitedTag(v1::Tensor::kDataFieldNumber), &inside);
  AppendVarint(tensor.bytes.size(), &inside);
  AppendVarint(LengthDelimitedTag(field), out);
  AppendVarint(inside.size() + tensor.bytes.size(), out);
  out->append(inside);
}

// One response being taken apart: the output's bytes go to their place, the
// rest is left for protobuf.
struct SplitResponse {
  std::string rest;  // an AttentionResponse without output.data
  std::optional<std::span<std::byte>> output;
  std::optional<Tensor> owned;
};

bool SplitOutputTensor(CodedInputStream* in, const TensorView& query,
                       std::span<std::byte> destination, SplitResponse* split) {
  std::string inside;
  {
    StringOutputStream sink(&inside);
    CodedOutputStream out(&sink);
    while (const uint32_t tag = in->ReadTag()) {
      if (tag != LengthDelimitedTag(v1::Tensor::kDataFieldNumber)) {
        if (!WireFormatLite::SkipField(in, tag, &out)) return false;
        continue;
      }
      uint32_t size = 0;
      if (!in->ReadVarint32(&size) || split->output.has_value() ||
          size > INT_MAX || size != query.bytes.size() ||
          DenseBytes(query.dtype, query.shape) != int64_t{size}) {
        return false;
      }
      if (destination.empty()) {
        split->owned.emplace(query.dtype, query.shape);
        destination = split->owned->bytes();
      }
      split->output = destination;
      if (size != destination.size() ||
          !in->ReadRaw(destination.data(), static_cast<int>(size))) {
        return false;
      }
    }
  }
  AppendVarint(LengthDelimitedTag(v1::AttentionResponse::kOutputFieldNumber),
               &split->rest);
  AppendVarint(inside.size(), &split->rest);
  split->rest.append(inside);
  return in->ConsumedEntireMessage();
}

bool SplitMessage(CodedInputStream* in, const TensorView& query,
                  std::span<std::byte> destination, SplitResponse* split) {
  while (const uint32_t tag = in->ReadTag()) {
    if (tag == LengthDelimitedTag(v1::AttentionResponse::kOutputFieldNumber)) {
      uint32_t size = 0;
      if (!in->ReadVarint32(&size) || size > INT_MAX) return false;
      const auto limit = in->PushLimit(static_cast<int>(size));
      if (!SplitOutputTensor(in, query, destination, split)) return false;
      in->PopLimit(limit);
      continue;
    }
    std::string field;
    {
      StringOutputStream sink(&field);
      CodedOutputStream out(&sink);
      if (!WireFormatLite::SkipField(in, tag, &out)) return false;
    }
    split->rest.append(field);
  }
  return in->ConsumedEntireMessage();
}

std::string ShapeText(v1::DataType dtype, std::span<const int64_t> shape) {
  const std::string_view name = Name(dtype);
  return absl::StrCat(absl::string_view(name.data(), name.size()), " [",
                      absl::StrJoin(shape, ", "), "]");
}

}  // namespace

grpc::ByteBuffer EncodeAttentionRequest(const AttentionArguments& arguments,
                                        const SliceMaker& make_slice) {
  using Request = v1::AttentionRequest;
  std::vector<grpc::Slice> slices;
  std::string between;  // protobuf's bytes up to the next tensor's
  Request head;
  head.set_request_id(arguments.request_id);
  head.AppendToString(&between);
  const std::pair<int, const TensorView*> tensors[] = {
      {Request::kQueryFieldNumber, &arguments.query},
      {Request::kKeyFieldNumber, &arguments.key},
      {Request::kValueFieldNumber, &arguments.value},
  };
  for (const auto& [field, tensor] : tensors) {
    AppendTensorHeader(field, *tensor, &between);
    slices.emplace_back(between);
    between.clear();
    if (!tensor->bytes.empty()) slices.push_back(make_slice(*tensor));
  }
  Request tail;
  *tail.mutable_layout() = arguments.layout;
  *tail.mutable_options() = arguments.options;
  slices.emplace_back(tail.SerializeAsString());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::StatusOr<AttentionResult> DecodeAttentionResponse(
    grpc::ByteBuffer* message, const TensorView& query,
    std::span<std::byte> destination) {
  SplitResponse split;
  bool whole = false;
  if (message->Valid()) {
    grpc::ProtoBufferReader reader(message);
    CodedInputStream in(&reader);
    in.SetTotalBytesLimit(INT_MAX);
    whole = SplitMessage(&in, query, destination, &split);
  }
  message->Clear();
  v1::AttentionResponse response;
  if (!whole || !response.ParseFromString(split.rest)) {
    return absl::InternalError(
        absl::StrCat("the response is no AttentionResponse with an output of ",
                     ShapeText(query.dtype, query.shape),
                     ": is the server's version this client's?"));
  }
  const v1::Tensor& output = response.output();
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  if (!split.output.has_value() || output.dtype() != query.dtype ||
      shape != query.shape) {
    return absl::InternalError(
        absl::StrCat("output: expected ", ShapeText(query.dtype, query.shape),
                     " with its data, got ", ShapeText(output.dtype(), shape),
                     split.output.has_value() ? "" : " without data"));
  }
  AttentionResult result;
  result.request_id = std::move(*response.mutable_request_id());
  result.report = std::move(*response.mutable_report());
  result.output = split.owned.has_value()
                      ? *std::move(split.owned)
                      : Tensor(query.dtype, query.shape, *split.output);
  return result;
}

}  // namespace ithaca::client
