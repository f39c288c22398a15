#include "server/stream_message.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "ithaca/v1/attention.pb.h"
#include "server/tensor_bytes.h"
#include "server/wire_reader.h"

namespace ithaca::server {

namespace {

using ithaca::internal::v1::RankChunk;
using ithaca::internal::v1::StreamRankRequest;
using ithaca::internal::v1::StreamRankResponse;
using ithaca::v1::StreamAttentionRequest;
using ithaca::v1::StreamAttentionResponse;
using ithaca::v1::TensorChunk;

constexpr uint32_t MessageTag(int field) {
  return MakeTag(static_cast<uint32_t>(field), WireType::kLengthDelimited);
}
constexpr uint32_t NumberTag(int field) {
  return MakeTag(static_cast<uint32_t>(field), WireType::kVarint);
}

// A chunk of either RPC: offset and data, and numbers before them.
struct ChunkFields {
  int role_field = 0;  // 0: there is none
  int offset_field = 0;
  int data_field = 0;
};
constexpr ChunkFields kTensorChunk = {TensorChunk::kRoleFieldNumber,
                                      TensorChunk::kOffsetFieldNumber,
                                      TensorChunk::kDataFieldNumber};
constexpr ChunkFields kRankChunk = {0, RankChunk::kOffsetFieldNumber,
                                    RankChunk::kDataFieldNumber};

// Reads to the limit. Fields that come again take the place of the former, as
// the generated parser merges them.
bool ReadChunk(const ChunkFields& fields, WireReader* reader, uint64_t* role,
               uint64_t* offset, TensorBytes* data) {
  while (!reader->AtLimit()) {
    uint32_t tag = 0;
    if (!reader->ReadTag(&tag)) return false;
    if (fields.role_field != 0 && tag == NumberTag(fields.role_field)) {
      if (!reader->ReadVarint(role)) return false;
    } else if (tag == NumberTag(fields.offset_field)) {
      if (!reader->ReadVarint(offset)) return false;
    } else if (tag == MessageTag(fields.data_field)) {
      int64_t length = 0;
      if (!reader->ReadLength(&length)) return false;
      *data = TensorBytes();
      reader->ReadPieces(length, data);
    } else if (!reader->SkipField(tag, WireReader::kMaxDepth - 1)) {
      return false;
    }
  }
  return true;
}

// A message whose one field is a chunk. The data comes last, so that its pieces
// follow one header.
grpc::ByteBuffer MakeChunk(int chunk_field, const std::string& numbers,
                           int data_field, const TensorBytes& data) {
  std::string chunk = numbers;
  AppendTag(static_cast<uint32_t>(data_field), WireType::kLengthDelimited,
            &chunk);
  AppendVarint(static_cast<uint64_t>(data.size()), &chunk);
  std::string header;
  AppendTag(static_cast<uint32_t>(chunk_field), WireType::kLengthDelimited,
            &header);
  AppendVarint(chunk.size() + static_cast<uint64_t>(data.size()), &header);
  header += chunk;

  std::vector<grpc::Slice> pieces;
  pieces.reserve(1 + data.pieces().size());
  pieces.emplace_back(header);
  data.AppendRange(0, data.size(), &pieces);
  return ToByteBuffer(pieces);
}

void AppendNumber(int field, uint64_t value, std::string* out) {
  AppendTag(static_cast<uint32_t>(field), WireType::kVarint, out);
  AppendVarint(value, out);
}

template <typename Message>
grpc::ByteBuffer Serialize(const Message& message) {
  return ToByteBuffer({grpc::Slice(message.SerializeAsString())});
}

bool ReadClientPart(const TensorBytes& bytes, ClientPart* part) {
  WireReader reader(bytes);
  while (!reader.AtLimit()) {
    uint32_t tag = 0;
    int64_t length = 0;
    if (!reader.ReadTag(&tag)) return false;
    if (tag == MessageTag(StreamAttentionRequest::kRequestFieldNumber)) {
      if (!reader.ReadLength(&length)) return false;
      if (part->kind != ClientPart::Kind::kRequest) *part = ClientPart();
      part->kind = ClientPart::Kind::kRequest;
      // Messages that follow each other merge as their bytes do.
      reader.ReadPieces(length, &part->request);
    } else if (tag == MessageTag(StreamAttentionRequest::kChunkFieldNumber)) {
      if (!reader.ReadLength(&length)) return false;
      if (part->kind != ClientPart::Kind::kChunk) *part = ClientPart();
      part->kind = ClientPart::Kind::kChunk;
      auto role = static_cast<uint64_t>(part->role);
      const int64_t outer = reader.Narrow(length);
      if (!ReadChunk(kTensorChunk, &reader, &role, &part->offset,
                     &part->data)) {
        return false;
      }
      reader.Widen(outer);
      part->role = static_cast<ithaca::v1::TensorRole>(role);
    } else if (!reader.SkipField(tag, WireReader::kMaxDepth)) {
      return false;
    }
  }
  return true;
}

bool ReadRankAnswerPart(const TensorBytes& bytes, RankAnswerPart* part) {
  WireReader reader(bytes);
  while (!reader.AtLimit()) {
    uint32_t tag = 0;
    int64_t length = 0;
    if (!reader.ReadTag(&tag)) return false;
    if (tag == MessageTag(StreamRankResponse::kExecutionFieldNumber)) {
      std::string execution;
      if (!reader.ReadLength(&length)) return false;
      reader.ReadBytes(length, &execution);
      if (!part->execution.ParseFromString(execution)) return false;
      part->kind = RankAnswerPart::Kind::kExecution;
    } else if (tag == MessageTag(StreamRankResponse::kChunkFieldNumber)) {
      if (!reader.ReadLength(&length)) return false;
      uint64_t no_role = 0;
      const int64_t outer = reader.Narrow(length);
      if (!ReadChunk(kRankChunk, &reader, &no_role, &part->offset,
                     &part->data)) {
        return false;
      }
      reader.Widen(outer);
      part->kind = RankAnswerPart::Kind::kChunk;
    } else if (!reader.SkipField(tag, WireReader::kMaxDepth)) {
      return false;
    }
  }
  return part->kind != RankAnswerPart::Kind::kNone;
}

}  // namespace

absl::Status ParseClientPart(const grpc::ByteBuffer& message,
                             ClientPart* part) {
  TensorBytes bytes;
  if (!FromByteBuffer(message, &bytes)) {
    return absl::InvalidArgumentError(
        "a part of the stream cannot be decompressed");
  }
  if (!ReadClientPart(bytes, part)) {
    return absl::InvalidArgumentError(
        "a part of the stream is not a valid ithaca.v1.StreamAttentionRequest "
        "message");
  }
  return absl::OkStatus();
}

grpc::ByteBuffer MakeClientResponse(
    const ithaca::v1::AttentionResponse& response) {
  std::string message;
  AppendLengthDelimited(StreamAttentionResponse::kResponseFieldNumber,
                        response.SerializeAsString(), &message);
  return ToByteBuffer({grpc::Slice(message)});
}

grpc::ByteBuffer MakeClientChunk(int64_t offset, const TensorBytes& data) {
  std::string numbers;
  AppendNumber(TensorChunk::kRoleFieldNumber, ithaca::v1::TENSOR_ROLE_OUTPUT,
               &numbers);
  AppendNumber(TensorChunk::kOffsetFieldNumber, static_cast<uint64_t>(offset),
               &numbers);
  return MakeChunk(StreamAttentionResponse::kChunkFieldNumber, numbers,
                   TensorChunk::kDataFieldNumber, data);
}

grpc::ByteBuffer MakeRankOpen(const ithaca::internal::v1::AttentionCall& call) {
  StreamRankRequest request;
  *request.mutable_open() = call;
  return Serialize(request);
}

grpc::ByteBuffer MakeRankChunk(int64_t offset, const TensorBytes& data) {
  std::string numbers;
  AppendNumber(RankChunk::kOffsetFieldNumber, static_cast<uint64_t>(offset),
               &numbers);
  return MakeChunk(StreamRankRequest::kChunkFieldNumber, numbers,
                   RankChunk::kDataFieldNumber, data);
}

grpc::ByteBuffer MakeRankRun(uint64_t call_number) {
  StreamRankRequest request;
  request.mutable_run()->set_call_number(call_number);
  return Serialize(request);
}

absl::Status ParseRankAnswerPart(const grpc::ByteBuffer& message,
                                 RankAnswerPart* part) {
  TensorBytes bytes;
  if (!FromByteBuffer(message, &bytes) || !ReadRankAnswerPart(bytes, part)) {
    return absl::InternalError(
        "a rank answered with something that is no valid StreamRankResponse");
  }
  return absl::OkStatus();
}

}  // namespace ithaca::server
