#include "server/attention_message.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "ithaca/v1/attention.pb.h"
#include "server/tensor_bytes.h"
#include "server/utf8.h"
#include "server/wire_reader.h"

namespace ithaca::server {

namespace {

using ithaca::v1::AttentionRequest;
using ithaca::v1::AttentionResponse;
using ithaca::v1::Tensor;

constexpr int64_t kMaxSmallBytes = int64_t{1} << 20;

absl::Status Malformed() {
  return absl::InvalidArgumentError(
      "the request is not a valid ithaca.v1.AttentionRequest message");
}

absl::Status TooLarge() {
  return absl::ResourceExhaustedError(
      absl::StrCat("the request has more than ", kMaxSmallBytes,
                   " bytes outside its tensors' data"));
}

bool IsLengthDelimited(uint32_t tag) {
  return (tag & 7) == static_cast<uint32_t>(WireType::kLengthDelimited);
}

// Splits a request into its small parts, which become a message for the
// generated parser, and its tensors' data. Merging and oneofs are thus the
// generated parser's: it sees the same fields in the same order, each `data`
// emptied.
class RequestSplitter {
 public:
  RequestSplitter(const TensorBytes& bytes, ReceivedRequest* request)
      : reader_(bytes), request_(request) {}

  absl::Status Split() {
    while (!reader_.AtLimit()) {
      uint32_t tag = 0;
      if (!reader_.ReadTag(&tag)) return Malformed();
      if (auto status = SplitField(tag); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::string& small() const { return small_; }

 private:
  absl::Status SplitField(uint32_t tag) {
    const uint32_t field = tag >> 3;
    if (IsLengthDelimited(tag)) {
      switch (field) {
        case AttentionRequest::kQueryFieldNumber:
          return SplitTensor(field, &request_->tensors.query);
        case AttentionRequest::kKeyFieldNumber:
          return SplitTensor(field, &request_->tensors.key);
        case AttentionRequest::kValueFieldNumber:
          return SplitTensor(field, &request_->tensors.value);
        case AttentionRequest::kRequestIdFieldNumber:
        case AttentionRequest::kLayoutFieldNumber:
        case AttentionRequest::kOptionsFieldNumber:
        case AttentionRequest::kOutputFieldNumber:
          return Keep(field, &small_);
        default:
          break;
      }
    }
    return reader_.SkipField(tag, WireReader::kMaxDepth) ? absl::OkStatus()
                                                         : Malformed();
  }

  // A length-delimited field, copied whole to `out`.
  absl::Status Keep(uint32_t field, std::string* out) {
    int64_t length = 0;
    if (!reader_.ReadLength(&length)) return Malformed();
    if (length + static_cast<int64_t>(out->size()) > kMaxSmallBytes) {
      return TooLarge();
    }
    AppendTag(field, WireType::kLengthDelimited, out);
    AppendVarint(static_cast<uint64_t>(length), out);
    const size_t begin = out->size();
    reader_.ReadBytes(length, out);
    // Checked here for a better message, and because the generated parser
    // writes to the process's log about it.
    if (out == &small_ && field == AttentionRequest::kRequestIdFieldNumber &&
        !IsValidUtf8(std::string_view(*out).substr(begin))) {
      return absl::InvalidArgumentError(
          "request_id: expected valid UTF-8, got other bytes");
    }
    return absl::OkStatus();
  }

  absl::Status SplitTensor(uint32_t field, TensorBytes* data) {
    int64_t length = 0;
    if (!reader_.ReadLength(&length)) return Malformed();
    const int64_t outer = reader_.Narrow(length);
    std::string tensor;
    while (!reader_.AtLimit()) {
      uint32_t tag = 0;
      if (!reader_.ReadTag(&tag)) return Malformed();
      if (auto status = SplitTensorField(tag, &tensor, data); !status.ok()) {
        return status;
      }
      if (tensor.size() + small_.size() > kMaxSmallBytes) return TooLarge();
    }
    reader_.Widen(outer);
    AppendLengthDelimited(field, tensor, &small_);
    return small_.size() > kMaxSmallBytes ? TooLarge() : absl::OkStatus();
  }

  absl::Status SplitTensorField(uint32_t tag, std::string* tensor,
                                TensorBytes* data) {
    const uint32_t field = tag >> 3;
    if (IsLengthDelimited(tag)) {
      if (field == Tensor::kDataFieldNumber) {
        int64_t length = 0;
        if (!reader_.ReadLength(&length)) return Malformed();
        *data = TensorBytes();
        reader_.ReadPieces(length, data);
        AppendLengthDelimited(field, "", tensor);
        return absl::OkStatus();
      }
      if (field == Tensor::kShapeFieldNumber ||
          field == Tensor::kMemoryFieldNumber) {
        return Keep(field, tensor);
      }
    }
    if (tag == MakeTag(Tensor::kDtypeFieldNumber, WireType::kVarint) ||
        tag == MakeTag(Tensor::kShapeFieldNumber, WireType::kVarint)) {
      uint64_t value = 0;
      if (!reader_.ReadVarint(&value)) return Malformed();
      AppendVarint(tag, tensor);
      AppendVarint(value, tensor);
      return absl::OkStatus();
    }
    return reader_.SkipField(tag, WireReader::kMaxDepth - 1) ? absl::OkStatus()
                                                             : Malformed();
  }

  WireReader reader_;
  ReceivedRequest* const request_;
  std::string small_;
};

// A later `memory` of the oneof takes the place of an earlier `data`.
void DropUnlessData(const Tensor& tensor, TensorBytes* data) {
  if (tensor.source_case() != Tensor::kData) *data = TensorBytes();
}

}  // namespace

absl::Status ParseAttentionRequest(const TensorBytes& bytes,
                                   ReceivedRequest* request) {
  RequestSplitter splitter(bytes, request);
  if (auto status = splitter.Split(); !status.ok()) return status;
  if (!request->message.ParseFromString(splitter.small())) return Malformed();
  DropUnlessData(request->message.query(), &request->tensors.query);
  DropUnlessData(request->message.key(), &request->tensors.key);
  DropUnlessData(request->message.value(), &request->tensors.value);
  return absl::OkStatus();
}

grpc::ByteBuffer MakeAttentionResponse(
    const std::string& request_id, ithaca::v1::DataType dtype,
    const std::vector<int64_t>& output_shape, const TensorBytes& output,
    const ithaca::v1::ExecutionReport& report) {
  Tensor tensor;
  tensor.set_dtype(dtype);
  tensor.mutable_shape()->Assign(output_shape.begin(), output_shape.end());
  std::string tensor_header = tensor.SerializeAsString();
  AppendTag(Tensor::kDataFieldNumber, WireType::kLengthDelimited,
            &tensor_header);
  AppendVarint(static_cast<uint64_t>(output.size()), &tensor_header);

  // The output comes last, so that its pieces follow one header.
  std::string header;
  AppendLengthDelimited(AttentionResponse::kRequestIdFieldNumber, request_id,
                        &header);
  AppendLengthDelimited(AttentionResponse::kReportFieldNumber,
                        report.SerializeAsString(), &header);
  AppendTag(AttentionResponse::kOutputFieldNumber, WireType::kLengthDelimited,
            &header);
  AppendVarint(tensor_header.size() + static_cast<uint64_t>(output.size()),
               &header);
  header += tensor_header;

  std::vector<grpc::Slice> pieces;
  pieces.reserve(1 + output.pieces().size());
  pieces.emplace_back(header);
  output.AppendRange(0, output.size(), &pieces);
  return ToByteBuffer(pieces);
}

grpc::ByteBuffer MakeAttentionResponse(
    const std::string& request_id, ithaca::v1::DataType dtype,
    const std::vector<int64_t>& output_shape,
    const ithaca::v1::MemorySlice& output,
    const ithaca::v1::ExecutionReport& report) {
  AttentionResponse response;
  response.set_request_id(request_id);
  Tensor* const tensor = response.mutable_output();
  tensor->set_dtype(dtype);
  tensor->mutable_shape()->Assign(output_shape.begin(), output_shape.end());
  *tensor->mutable_memory() = output;
  *response.mutable_report() = report;
  return ToByteBuffer({grpc::Slice(response.SerializeAsString())});
}

}  // namespace ithaca::server
