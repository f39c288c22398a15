#include "server/wire_reader.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "server/tensor_bytes.h"

namespace ithaca::server {

namespace {

// libprotobuf keeps 16 bytes of slop after its buffers and refuses lengths
// that would overflow an int with them.
constexpr uint64_t kMaxLength = std::numeric_limits<int32_t>::max() - 16;

}  // namespace

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void AppendTag(uint32_t field, WireType type, std::string* out) {
  AppendVarint(MakeTag(field, type), out);
}

void AppendLengthDelimited(uint32_t field, const std::string& bytes,
                           std::string* out) {
  AppendTag(field, WireType::kLengthDelimited, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes);
}

WireReader::WireReader(const TensorBytes& bytes)
    : bytes_(bytes), remaining_(bytes.size()) {}

int64_t WireReader::Contiguous(int64_t length) {
  if (offset_ == bytes_.pieces()[piece_].size()) {
    ++piece_;
    offset_ = 0;
  }
  return std::min(
      length, static_cast<int64_t>(bytes_.pieces()[piece_].size() - offset_));
}

bool WireReader::ReadByte(uint8_t* byte) {
  if (remaining_ == 0) return false;
  Contiguous(1);
  *byte = bytes_.pieces()[piece_].begin()[offset_];
  ++offset_;
  --remaining_;
  return true;
}

bool WireReader::ReadVarint(uint64_t* value) {
  uint64_t result = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    uint8_t byte = 0;
    if (!ReadByte(&byte)) return false;
    result |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *value = result;
      return true;
    }
  }
  return false;
}

bool WireReader::ReadRawTag(uint32_t* tag) {
  uint32_t result = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    uint8_t byte = 0;
    if (!ReadByte(&byte)) return false;
    result |= static_cast<uint32_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *tag = result;
      return true;
    }
  }
  return false;
}

bool WireReader::ReadTag(uint32_t* tag) {
  return ReadRawTag(tag) && *tag >> 3 != 0 &&
         (*tag & 7) != static_cast<uint32_t>(WireType::kEndGroup);
}

bool WireReader::ReadLength(int64_t* length) {
  uint64_t value = 0;
  for (int shift = 0; shift < 35; shift += 7) {
    uint8_t byte = 0;
    if (!ReadByte(&byte)) return false;
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      if (value > kMaxLength || static_cast<int64_t>(value) > remaining_) {
        return false;
      }
      *length = static_cast<int64_t>(value);
      return true;
    }
  }
  return false;
}

void WireReader::ReadBytes(int64_t length, std::string* out) {
  remaining_ -= length;
  while (length > 0) {
    const int64_t part = Contiguous(length);
    out->append(reinterpret_cast<const char*>(bytes_.pieces()[piece_].begin() +
                                              offset_),
                static_cast<size_t>(part));
    offset_ += static_cast<size_t>(part);
    length -= part;
  }
}

void WireReader::ReadPieces(int64_t length, TensorBytes* out) {
  remaining_ -= length;
  while (length > 0) {
    const int64_t part = Contiguous(length);
    out->Append(bytes_.pieces()[piece_].sub(
        offset_, offset_ + static_cast<size_t>(part)));
    offset_ += static_cast<size_t>(part);
    length -= part;
  }
}

bool WireReader::Advance(int64_t length) {
  if (length > remaining_) return false;
  remaining_ -= length;
  while (length > 0) {
    const int64_t part = Contiguous(length);
    offset_ += static_cast<size_t>(part);
    length -= part;
  }
  return true;
}

bool WireReader::SkipField(uint32_t tag, int depth) {
  switch (static_cast<WireType>(tag & 7)) {
    case WireType::kVarint: {
      uint64_t value = 0;
      return ReadVarint(&value);
    }
    case WireType::kFixed64:
      return Advance(8);
    case WireType::kLengthDelimited: {
      int64_t length = 0;
      return ReadLength(&length) && Advance(length);
    }
    case WireType::kStartGroup:
      return SkipGroup(tag, depth - 1);
    case WireType::kFixed32:
      return Advance(4);
    case WireType::kEndGroup:
      break;
  }
  return false;
}

bool WireReader::SkipGroup(uint32_t start_tag, int depth) {
  if (depth < 0) return false;
  for (;;) {
    uint32_t tag = 0;
    if (!ReadRawTag(&tag)) return false;
    // The end-group tag of a field is its start-group tag plus one.
    if ((tag & 7) == static_cast<uint32_t>(WireType::kEndGroup)) {
      return tag == start_tag + 1;
    }
    if (tag >> 3 == 0 || !SkipField(tag, depth)) return false;
  }
}

int64_t WireReader::Narrow(int64_t length) {
  const int64_t outer_remaining = remaining_ - length;
  remaining_ = length;
  return outer_remaining;
}

}  // namespace ithaca::server
