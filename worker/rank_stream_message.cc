#include "worker/rank_stream_message.h"

#include <google/protobuf/wire_format_lite.h>

#include <string>
#include <utility>

#include "worker/grpc_slice_cursor.h"

namespace ithaca {
namespace {

using google::protobuf::internal::WireFormatLite;
using internal::v1::RankChunk;
using internal::v1::StreamRankRequest;
using internal::v1::StreamRankResponse;

constexpr uint32_t BytesTag(int field) {
  return WireFormatLite::MakeTag(field,
                                 WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}
constexpr uint32_t kOffsetTag = WireFormatLite::MakeTag(
    RankChunk::kOffsetFieldNumber, WireFormatLite::WIRETYPE_VARINT);
constexpr uint32_t kDataTag = BytesTag(RankChunk::kDataFieldNumber);

template <typename Message>
bool ReadPart(SliceCursor* cursor, StreamPart* part) {
  std::string joined;
  return cursor->ReadMessage(&joined) &&
         part->part.emplace<Message>().ParseFromString(joined);
}

bool ReadChunk(SliceCursor* cursor, StagedChunk* chunk) {
  uint64_t size = 0;
  if (!cursor->ReadVarint(&size) || size > cursor->remaining()) return false;
  const uint64_t end = cursor->remaining() - size;
  bool has_offset = false, has_data = false;
  while (cursor->remaining() > end) {
    uint32_t tag = 0;
    if (!cursor->ReadTag(&tag)) return false;
    if (tag == kOffsetTag) {
      if (std::exchange(has_offset, true)) return false;
      if (!cursor->ReadVarint(&chunk->offset)) return false;
    } else if (tag == kDataTag) {
      if (std::exchange(has_data, true)) return false;
      if (!cursor->ReadVarint(&size) || !cursor->Read(size, &chunk->data)) {
        return false;
      }
    } else if (!cursor->SkipField(tag)) {
      return false;
    }
  }
  // A field that ran over the chunk's end has taken what is not its own.
  return cursor->remaining() == end;
}

void LetGo(void* holder) {
  delete static_cast<std::shared_ptr<const HostBuffer>*>(holder);
}

}  // namespace

absl::Status ParseStreamPart(const grpc::ByteBuffer& message,
                             StreamPart* part) {
  absl::Status malformed =
      absl::InvalidArgumentError("malformed StreamRankRequest");
  if (!message.Dump(&part->slices).ok()) return malformed;
  SliceCursor cursor(part->slices);
  while (!cursor.AtEnd()) {
    uint32_t tag = 0;
    if (!cursor.ReadTag(&tag)) return malformed;
    const bool is_part =
        tag == BytesTag(StreamRankRequest::kOpenFieldNumber) ||
        tag == BytesTag(StreamRankRequest::kChunkFieldNumber) ||
        tag == BytesTag(StreamRankRequest::kRunFieldNumber);
    if (is_part && part->part.index() != 0) return malformed;
    bool read = false;
    if (tag == BytesTag(StreamRankRequest::kOpenFieldNumber)) {
      read = ReadPart<internal::v1::AttentionCall>(&cursor, part);
    } else if (tag == BytesTag(StreamRankRequest::kChunkFieldNumber)) {
      read = ReadChunk(&cursor, &part->part.emplace<StagedChunk>());
    } else if (tag == BytesTag(StreamRankRequest::kRunFieldNumber)) {
      read = ReadPart<internal::v1::RunStaged>(&cursor, part);
    } else {
      read = cursor.SkipField(tag);
    }
    if (!read) return malformed;
  }
  return part->part.index() == 0 ? malformed : absl::OkStatus();
}

grpc::ByteBuffer FrameExecution(const internal::v1::RankExecution& execution) {
  std::string head;
  AppendVarint(BytesTag(StreamRankResponse::kExecutionFieldNumber), &head);
  AppendVarint(execution.ByteSizeLong(), &head);
  execution.AppendToString(&head);
  grpc::Slice slice(head);
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer FrameChunk(uint64_t offset,
                            const std::shared_ptr<const HostBuffer>& output,
                            absl::Span<const ByteRange> ranges) {
  uint64_t bytes = 0;
  for (const ByteRange& range : ranges) {
    bytes += static_cast<uint64_t>(range.size);
  }
  std::string chunk_head;
  AppendVarint(kOffsetTag, &chunk_head);
  AppendVarint(offset, &chunk_head);
  AppendVarint(kDataTag, &chunk_head);
  AppendVarint(bytes, &chunk_head);
  std::string head;
  AppendVarint(BytesTag(StreamRankResponse::kChunkFieldNumber), &head);
  AppendVarint(chunk_head.size() + bytes, &head);
  std::vector<grpc::Slice> slices = {grpc::Slice(head + chunk_head)};
  for (const ByteRange& range : ranges) {
    slices.emplace_back(const_cast<char*>(output->data()) + range.begin,
                        static_cast<size_t>(range.size), &LetGo,
                        new std::shared_ptr<const HostBuffer>(output));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace ithaca
