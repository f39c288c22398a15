#include "client/stream_wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <climits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr size_t kChunkBytes = size_t{1} << 20;

constexpr uint32_t Tag(int field, WireFormatLite::WireType type) {
  return WireFormatLite::MakeTag(field, type);
}

constexpr uint32_t LengthDelimited(int field) {
  return Tag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

// A StreamAttentionRequest up to its chunk's bytes, which follow.
std::string ChunkHeader(v1::TensorRole role, uint64_t offset, uint64_t size) {
  v1::TensorChunk without_data;
  without_data.set_role(role);
  without_data.set_offset(offset);
  std::string inside = without_data.SerializeAsString();
  AppendVarint(LengthDelimited(v1::TensorChunk::kDataFieldNumber), &inside);
  AppendVarint(size, &inside);
  std::string header;
  AppendVarint(LengthDelimited(v1::StreamAttentionRequest::kChunkFieldNumber),
               &header);
  AppendVarint(inside.size() + size, &header);
  return header + inside;
}

bool ReadLength(CodedInputStream* in, int* length) {
  uint32_t size = 0;
  if (!in->ReadVarint32(&size) || size > INT_MAX) return false;
  *length = static_cast<int>(size);
  return true;
}

absl::Status Malformed() {
  return absl::InternalError(
      "a message of the answer is no StreamAttentionResponse: is the server's "
      "version this client's?");
}

// A TensorChunk whose bytes go to `rest_of_output`. False: malformed.
// *problem: well-formed, and not the chunk that comes next.
bool ReadChunk(CodedInputStream* in, uint64_t next_offset,
               std::span<std::byte> rest_of_output, size_t* taken,
               std::string* problem) {
  uint32_t role = 0;
  uint64_t offset = 0;
  bool has_data = false;
  while (const uint32_t tag = in->ReadTag()) {
    // The bytes are last: once they are in their place, nothing may say that
    // they belong elsewhere.
    if (has_data) return false;
    if (tag == Tag(v1::TensorChunk::kRoleFieldNumber,
                   WireFormatLite::WIRETYPE_VARINT)) {
      if (!in->ReadVarint32(&role)) return false;
    } else if (tag == Tag(v1::TensorChunk::kOffsetFieldNumber,
                          WireFormatLite::WIRETYPE_VARINT)) {
      if (!in->ReadVarint64(&offset)) return false;
    } else if (tag == LengthDelimited(v1::TensorChunk::kDataFieldNumber)) {
      int size = 0;
      if (!ReadLength(in, &size)) return false;
      if (role != v1::TENSOR_ROLE_OUTPUT || offset != next_offset ||
          static_cast<size_t>(size) > rest_of_output.size()) {
        *problem = absl::StrCat(
            "a chunk of the answer: expected role ",
            static_cast<int>(v1::TENSOR_ROLE_OUTPUT), ", offset ", next_offset,
            " and at most ", rest_of_output.size(), " bytes, got role ", role,
            ", offset ", offset, " and ", size, " bytes");
        return true;
      }
      if (!in->ReadRaw(rest_of_output.data(), size)) return false;
      has_data = true;
      *taken = static_cast<size_t>(size);
    } else if (!WireFormatLite::SkipField(in, tag)) {
      return false;
    }
  }
  return in->ConsumedEntireMessage();
}

}  // namespace

StreamRequestWriter::StreamRequestWriter(const AttentionArguments& arguments,
                                         const SliceMaker& make_slice) {
  v1::StreamAttentionRequest first;
  *first.mutable_request() = RequestWithoutData(arguments);
  const grpc::Slice slice(first.SerializeAsString());
  request_.emplace(&slice, 1);
  const std::pair<v1::TensorRole, const TensorView*> tensors[] = {
      {v1::TENSOR_ROLE_QUERY, &arguments.query},
      {v1::TENSOR_ROLE_KEY, &arguments.key},
      {v1::TENSOR_ROLE_VALUE, &arguments.value},
  };
  for (const auto& [role, tensor] : tensors) {
    if (tensor->region.region != nullptr || tensor->bytes.empty()) continue;
    parts_.push_back({role, make_slice(*tensor)});
  }
}

std::optional<grpc::ByteBuffer> StreamRequestWriter::Next() {
  if (request_.has_value()) return std::exchange(request_, std::nullopt);
  if (part_ == parts_.size()) return std::nullopt;
  const Part& part = parts_[part_];
  const size_t size = std::min(kChunkBytes, part.slice.size() - offset_);
  const grpc::Slice slices[] = {
      grpc::Slice(ChunkHeader(part.role, offset_, size)),
      part.slice.sub(offset_, offset_ + size),
  };
  offset_ += size;
  if (offset_ == part.slice.size()) {
    // What is sent may be let go of.
    parts_[part_].slice = grpc::Slice();
    offset_ = 0;
    ++part_;
  }
  return grpc::ByteBuffer(slices, 2);
}

void StreamRequestWriter::Clear() {
  request_.reset();
  parts_.clear();
  part_ = 0;
}

StreamResponseReader::StreamResponseReader(ExpectedOutput expected)
    : expected_(std::move(expected)) {}

absl::Status StreamResponseReader::Take(grpc::ByteBuffer* message) {
  if (!message->Valid()) return Malformed();
  absl::Status status;
  {
    grpc::ProtoBufferReader reader(message);
    CodedInputStream in(&reader);
    in.SetTotalBytesLimit(INT_MAX);
    while (const uint32_t tag = in.ReadTag()) {
      const bool is_response =
          tag ==
          LengthDelimited(v1::StreamAttentionResponse::kResponseFieldNumber);
      const bool is_chunk =
          tag ==
          LengthDelimited(v1::StreamAttentionResponse::kChunkFieldNumber);
      if (!is_response && !is_chunk) {
        if (!WireFormatLite::SkipField(&in, tag)) return Malformed();
        continue;
      }
      int size = 0;
      if (!ReadLength(&in, &size)) return Malformed();
      const auto limit = in.PushLimit(size);
      if (is_response) {
        v1::AttentionResponse response;
        if (!response.MergeFromCodedStream(&in) ||
            !in.ConsumedEntireMessage()) {
          return Malformed();
        }
        status = TakeResponse(response);
      } else if (!result_.has_value()) {
        status = absl::InternalError(
            "the answer starts with a chunk: expected the response first");
      } else {
        size_t taken = 0;
        std::string problem;
        const std::span<std::byte> output = result_->output.bytes();
        const bool in_region = expected_.region.region != nullptr;
        if (!ReadChunk(
                &in, received_,
                in_region ? std::span<std::byte>() : output.subspan(received_),
                &taken, &problem)) {
          return Malformed();
        }
        received_ += taken;
        if (!problem.empty()) status = absl::InternalError(problem);
      }
      if (!status.ok()) return status;
      in.PopLimit(limit);
    }
    if (!in.ConsumedEntireMessage()) return Malformed();
  }
  message->Clear();
  return absl::OkStatus();
}

absl::Status StreamResponseReader::TakeResponse(
    const v1::AttentionResponse& response) {
  if (result_.has_value()) {
    return absl::InternalError("the answer has two responses: expected one");
  }
  if (DenseBytes(expected_.dtype, expected_.shape) !=
      static_cast<int64_t>(expected_.byte_size)) {
    return absl::InternalError("query's bytes are not those of its shape");
  }
  if (absl::Status status = CheckOutput(response.output(),
                                        response.output().has_data(), expected_,
                                        /*with_data=*/false);
      !status.ok()) {
    return status;
  }
  result_.emplace();
  result_->request_id = response.request_id();
  result_->report = response.report();
  result_->output = MakeOutput(expected_);
  return absl::OkStatus();
}

absl::StatusOr<AttentionResult> StreamResponseReader::Finish() {
  if (!result_.has_value()) {
    return absl::InternalError("the answer ended without a response");
  }
  const uint64_t expected =
      expected_.region.region != nullptr ? 0 : expected_.byte_size;
  if (received_ != expected) {
    return absl::InternalError(absl::StrCat("output: expected ", expected,
                                            " bytes, the answer ended after ",
                                            received_));
  }
  return *std::move(result_);
}

}  // namespace ithaca::client
