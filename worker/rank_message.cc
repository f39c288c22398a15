#include "worker/rank_message.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <string>
#include <utility>

namespace ithaca {
namespace {

using google::protobuf::internal::WireFormatLite;
using internal::v1::RunAttentionRequest;
using internal::v1::RunAttentionResponse;

constexpr uint32_t kCallTag =
    WireFormatLite::MakeTag(RunAttentionRequest::kCallFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kTensorsTag =
    WireFormatLite::MakeTag(RunAttentionRequest::kTensorsFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kExecutionTag =
    WireFormatLite::MakeTag(RunAttentionResponse::kExecutionFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
constexpr uint32_t kOutputTag =
    WireFormatLite::MakeTag(RunAttentionResponse::kOutputFieldNumber,
                            WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

// Reads on from slice to slice.
class SliceCursor {
 public:
  explicit SliceCursor(const std::vector<grpc::Slice>& slices)
      : slices_(slices) {
    for (const grpc::Slice& slice : slices) remaining_ += slice.size();
  }

  bool AtEnd() const { return remaining_ == 0; }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (AtEnd()) return false;
      const uint8_t byte = static_cast<uint8_t>(Piece(1).front());
      *value |= uint64_t{byte & 0x7fu} << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }

  // The next `size` bytes, in the pieces that they lie in. Null: skips them.
  bool Read(uint64_t size, std::vector<std::string_view>* pieces) {
    if (size > remaining_) return false;
    while (size > 0) {
      const std::string_view piece = Piece(size);
      if (pieces != nullptr) pieces->push_back(piece);
      size -= piece.size();
    }
    return true;
  }

 private:
  // Up to `size` bytes, at least one. REQUIRES: size >= 1 and not AtEnd.
  std::string_view Piece(uint64_t size) {
    while (offset_ == slices_[index_].size()) {
      ++index_;
      offset_ = 0;
    }
    const grpc::Slice& slice = slices_[index_];
    const size_t taken = std::min<uint64_t>(size, slice.size() - offset_);
    const std::string_view piece(
        reinterpret_cast<const char*>(slice.begin()) + offset_, taken);
    offset_ += taken;
    remaining_ -= taken;
    return piece;
  }

  const std::vector<grpc::Slice>& slices_;
  size_t index_ = 0;
  size_t offset_ = 0;
  uint64_t remaining_ = 0;
};

bool SkipField(uint32_t tag, SliceCursor* cursor) {
  uint64_t value = 0;
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT:
      return cursor->ReadVarint(&value);
    case WireFormatLite::WIRETYPE_FIXED64:
      return cursor->Read(8, nullptr);
    case WireFormatLite::WIRETYPE_FIXED32:
      return cursor->Read(4, nullptr);
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      return cursor->ReadVarint(&value) && cursor->Read(value, nullptr);
    default:
      return false;  // groups: neither side has ever written one
  }
}

// A field of `call`: small, so that a copy is cheaper than care.
bool ReadCall(SliceCursor* cursor, internal::v1::AttentionCall* call) {
  uint64_t size = 0;
  std::vector<std::string_view> pieces;
  if (!cursor->ReadVarint(&size) || !cursor->Read(size, &pieces)) return false;
  std::string joined;
  for (std::string_view piece : pieces) joined.append(piece);
  return call->MergeFromString(joined);
}

bool ReadTensors(SliceCursor* cursor, std::vector<std::string_view>* tensors) {
  uint64_t size = 0;
  tensors->clear();
  return cursor->ReadVarint(&size) && cursor->Read(size, tensors);
}

void AppendVarint(uint64_t value, std::string* out) {
  uint8_t bytes[10];
  const uint8_t* end =
      google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(value,
                                                                    bytes);
  out->append(reinterpret_cast<const char*>(bytes),
              static_cast<size_t>(end - bytes));
}

void ReleaseOutput(void* holder) {
  delete static_cast<std::shared_ptr<const HostBuffer>*>(holder);
}

}  // namespace

absl::Status ParseRankRequest(const grpc::ByteBuffer& message,
                              RankRequest* request) {
  absl::Status malformed =
      absl::InvalidArgumentError("malformed RunAttentionRequest");
  if (!message.Dump(&request->slices).ok()) return malformed;
  SliceCursor cursor(request->slices);
  while (!cursor.AtEnd()) {
    uint64_t tag = 0;
    if (!cursor.ReadVarint(&tag) || tag > UINT32_MAX) return malformed;
    bool read = false;
    if (tag == kCallTag) {
      read = ReadCall(&cursor, &request->call);
    } else if (tag == kTensorsTag) {
      read = ReadTensors(&cursor, &request->tensors);
    } else {
      read = SkipField(static_cast<uint32_t>(tag), &cursor);
    }
    if (!read) return malformed;
  }
  return absl::OkStatus();
}

grpc::ByteBuffer FrameRankResponse(const internal::v1::RankExecution& execution,
                                   std::shared_ptr<const HostBuffer> output,
                                   int64_t bytes) {
  std::string head;
  AppendVarint(kExecutionTag, &head);
  AppendVarint(execution.ByteSizeLong(), &head);
  execution.AppendToString(&head);
  if (bytes == 0) {
    grpc::Slice slice(head);
    return grpc::ByteBuffer(&slice, 1);
  }
  AppendVarint(kOutputTag, &head);
  AppendVarint(static_cast<uint64_t>(bytes), &head);
  void* const data = const_cast<char*>(output->data());
  grpc::Slice slices[] = {
      grpc::Slice(head),
      grpc::Slice(data, static_cast<size_t>(bytes), &ReleaseOutput,
                  new std::shared_ptr<const HostBuffer>(std::move(output)))};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace ithaca
