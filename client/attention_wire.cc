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
#include "client/memory_region.h"

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

v1::Tensor WithoutData(const TensorView& tensor) {
  v1::Tensor message;
  message.set_dtype(tensor.dtype);
  message.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  return message;
}

void SetSlice(const RegionView& view, uint64_t byte_size,
              v1::MemorySlice* slice) {
  slice->set_region(view.region->registration().name);
  slice->set_offset(view.offset);
  slice->set_byte_size(byte_size);
}

// Everything of a tensor field but the bytes themselves, which follow.
void AppendTensorHeader(int field, const TensorView& tensor, std::string* out) {
  std::string inside = WithoutData(tensor).SerializeAsString();
  AppendVarint(LengthDelimitedTag(v1::Tensor::kDataFieldNumber), &inside);
  AppendVarint(tensor.bytes.size(), &inside);
  AppendVarint(LengthDelimitedTag(field), out);
  AppendVarint(inside.size() + tensor.bytes.size(), out);
  out->append(inside);
}

// One response being taken apart: the output's bytes go to their place, the
// rest is left for protobuf.
struct SplitResponse {
  std::string rest;              // an AttentionResponse without output.data
  std::optional<Tensor> output;  // with that data
};

bool SplitOutputTensor(CodedInputStream* in, const ExpectedOutput& expected,
                       SplitResponse* split) {
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
          size > INT_MAX || size != expected.byte_size ||
          expected.region.region != nullptr) {
        return false;
      }
      split->output = MakeOutput(expected);
      if (!in->ReadRaw(split->output->bytes().data(), static_cast<int>(size))) {
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

bool SplitMessage(CodedInputStream* in, const ExpectedOutput& expected,
                  SplitResponse* split) {
  while (const uint32_t tag = in->ReadTag()) {
    if (tag == LengthDelimitedTag(v1::AttentionResponse::kOutputFieldNumber)) {
      uint32_t size = 0;
      if (!in->ReadVarint32(&size) || size > INT_MAX) return false;
      const auto limit = in->PushLimit(static_cast<int>(size));
      if (!SplitOutputTensor(in, expected, split)) return false;
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

v1::AttentionRequest RequestWithoutData(const AttentionArguments& arguments) {
  v1::AttentionRequest request;
  request.set_request_id(arguments.request_id);
  *request.mutable_layout() = arguments.layout;
  *request.mutable_options() = arguments.options;
  const std::pair<const TensorView*, v1::Tensor*> tensors[] = {
      {&arguments.query, request.mutable_query()},
      {&arguments.key, request.mutable_key()},
      {&arguments.value, request.mutable_value()},
  };
  for (const auto& [view, tensor] : tensors) {
    *tensor = WithoutData(*view);
    if (view->region.region == nullptr) continue;
    SetSlice(view->region, ByteSize(*view), tensor->mutable_memory());
  }
  if (arguments.output_region.region != nullptr) {
    SetSlice(arguments.output_region, ByteSize(arguments.query),
             request.mutable_output());
  }
  return request;
}

const MemoryRegion* AnyRegionOf(const AttentionArguments& arguments) {
  for (const RegionView* view :
       {&arguments.query.region, &arguments.key.region, &arguments.value.region,
        &arguments.output_region}) {
    if (view->region != nullptr) return view->region.get();
  }
  return nullptr;
}

grpc::ByteBuffer EncodeAttentionRequest(const AttentionArguments& arguments,
                                        const SliceMaker& make_slice) {
  using Request = v1::AttentionRequest;
  std::vector<grpc::Slice> slices;
  Request rest = RequestWithoutData(arguments);
  const std::pair<int, const TensorView*> tensors[] = {
      {Request::kQueryFieldNumber, &arguments.query},
      {Request::kKeyFieldNumber, &arguments.key},
      {Request::kValueFieldNumber, &arguments.value},
  };
  std::vector<std::pair<int, const TensorView*>> inside;
  for (const auto& [field, tensor] : tensors) {
    if (tensor->region.region != nullptr) continue;
    inside.emplace_back(field, tensor);
    rest.GetReflection()->ClearField(
        &rest, rest.GetDescriptor()->FindFieldByNumber(field));
  }
  std::string between =
      rest.SerializeAsString();  // up to the next tensor's data
  for (const auto& [field, tensor] : inside) {
    AppendTensorHeader(field, *tensor, &between);
    slices.emplace_back(between);
    between.clear();
    if (!tensor->bytes.empty()) slices.push_back(make_slice(*tensor));
  }
  if (!between.empty()) slices.emplace_back(between);
  return grpc::ByteBuffer(slices.data(), slices.size());
}

ExpectedOutput OutputOf(const AttentionArguments& arguments) {
  return {.dtype = arguments.query.dtype,
          .shape = arguments.query.shape,
          .byte_size = ByteSize(arguments.query),
          .destination = arguments.output,
          .region = arguments.output_region};
}

Tensor MakeOutput(const ExpectedOutput& expected) {
  if (const auto& region = expected.region.region; region != nullptr) {
    std::span<std::byte> bytes = region->bytes();
    if (!bytes.empty()) {
      bytes = bytes.subspan(expected.region.offset, expected.byte_size);
    }
    return {expected.dtype, expected.shape, bytes, expected.region};
  }
  if (expected.destination.empty()) return {expected.dtype, expected.shape};
  return {expected.dtype, expected.shape, expected.destination};
}

absl::Status CheckOutput(const v1::Tensor& output, bool has_data,
                         const ExpectedOutput& expected, bool with_data) {
  const std::vector<int64_t> shape(output.shape().begin(),
                                   output.shape().end());
  if (output.dtype() == expected.dtype && shape == expected.shape &&
      has_data == with_data) {
    return absl::OkStatus();
  }
  const auto text = [](bool data) { return data ? " with" : " without"; };
  return absl::InternalError(absl::StrCat(
      "output: expected ", ShapeText(expected.dtype, expected.shape),
      text(with_data), " data inside, got ", ShapeText(output.dtype(), shape),
      text(has_data)));
}

absl::StatusOr<AttentionResult> DecodeAttentionResponse(
    grpc::ByteBuffer* message, const ExpectedOutput& expected) {
  SplitResponse split;
  bool whole = false;
  if (message->Valid() && DenseBytes(expected.dtype, expected.shape) ==
                              static_cast<int64_t>(expected.byte_size)) {
    grpc::ProtoBufferReader reader(message);
    CodedInputStream in(&reader);
    in.SetTotalBytesLimit(INT_MAX);
    whole = SplitMessage(&in, expected, &split);
  }
  message->Clear();
  v1::AttentionResponse response;
  if (!whole || !response.ParseFromString(split.rest)) {
    return absl::InternalError(
        absl::StrCat("the response is no AttentionResponse with an output of ",
                     ShapeText(expected.dtype, expected.shape),
                     ": is the server's version this client's?"));
  }
  const bool in_region = expected.region.region != nullptr;
  if (absl::Status status =
          CheckOutput(response.output(), split.output.has_value(), expected,
                      /*with_data=*/!in_region);
      !status.ok()) {
    return status;
  }
  AttentionResult result;
  result.request_id = std::move(*response.mutable_request_id());
  result.report = std::move(*response.mutable_report());
  result.output = in_region ? MakeOutput(expected) : *std::move(split.output);
  return result;
}

}  // namespace ithaca::client
