#include "worker/grpc_slice_cursor.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>

namespace ithaca {

using google::protobuf::internal::WireFormatLite;

SliceCursor::SliceCursor(const std::vector<grpc::Slice>& slices)
    : slices_(slices) {
  for (const grpc::Slice& slice : slices) remaining_ += slice.size();
}

bool SliceCursor::ReadVarint(uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (AtEnd()) return false;
    const uint8_t byte = static_cast<uint8_t>(Piece(1).front());
    *value |= uint64_t{byte & 0x7fu} << shift;
    if ((byte & 0x80) == 0) return true;
  }
  return false;
}

bool SliceCursor::ReadTag(uint32_t* tag) {
  uint64_t value = 0;
  if (!ReadVarint(&value) || value > UINT32_MAX) return false;
  *tag = static_cast<uint32_t>(value);
  return true;
}

bool SliceCursor::Read(uint64_t size, std::vector<std::string_view>* pieces) {
  if (size > remaining_) return false;
  while (size > 0) {
    const std::string_view piece = Piece(size);
    if (pieces != nullptr) pieces->push_back(piece);
    size -= piece.size();
  }
  return true;
}

bool SliceCursor::ReadMessage(std::string* joined) {
  uint64_t size = 0;
  std::vector<std::string_view> pieces;
  if (!ReadVarint(&size) || !Read(size, &pieces)) return false;
  for (std::string_view piece : pieces) joined->append(piece);
  return true;
}

bool SliceCursor::SkipField(uint32_t tag) {
  uint64_t value = 0;
  switch (WireFormatLite::GetTagWireType(tag)) {
    case WireFormatLite::WIRETYPE_VARINT:
      return ReadVarint(&value);
    case WireFormatLite::WIRETYPE_FIXED64:
      return Read(8, nullptr);
    case WireFormatLite::WIRETYPE_FIXED32:
      return Read(4, nullptr);
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
      return ReadVarint(&value) && Read(value, nullptr);
    default:
      return false;  // groups: neither side has ever written one
  }
}

std::string_view SliceCursor::Piece(uint64_t size) {
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

void AppendVarint(uint64_t value, std::string* out) {
  uint8_t bytes[10];
  const uint8_t* end =
      google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(value,
                                                                    bytes);
  out->append(reinterpret_cast<const char*>(bytes),
              static_cast<size_t>(end - bytes));
}

}  // namespace ithaca
