#ifndef ITHACA_SERVER_WIRE_READER_H_
#define ITHACA_SERVER_WIRE_READER_H_

#include <cstdint>
#include <string>

#include "server/tensor_bytes.h"

// Protocol Buffers' wire format over bytes that lie in pieces, accepting
// exactly what the generated C++ parsers accept. It reads tags and lengths and
// hands out the rest by reference; it knows no message.
//
// Source: protobuf.dev/programming-guides/encoding; limits of libprotobuf 3.21
// (tags of at most 5 bytes, lengths under 2 GiB, nesting of at most 100).

namespace ithaca::server {

enum class WireType : uint8_t {
  kVarint = 0,
  kFixed64 = 1,
  kLengthDelimited = 2,
  kStartGroup = 3,
  kEndGroup = 4,
  kFixed32 = 5,
};

constexpr uint32_t MakeTag(uint32_t field, WireType type) {
  return field << 3 | static_cast<uint32_t>(type);
}

// The encoding side, for the small parts of a message.
void AppendVarint(uint64_t value, std::string* out);
void AppendTag(uint32_t field, WireType type, std::string* out);
// Tag, length and bytes of a length-delimited field.
void AppendLengthDelimited(uint32_t field, const std::string& bytes,
                           std::string* out);

// A cursor. Every Read and Skip returns false, and leaves the cursor anywhere,
// if the bytes up to the limit are not what was asked for; it never reads past
// the limit. Not thread-safe.
class WireReader {
 public:
  // Nesting that libprotobuf allows, the outermost message not counted.
  static constexpr int kMaxDepth = 100;

  explicit WireReader(const TensorBytes& bytes);  // outlives this

  bool AtLimit() const { return remaining_ == 0; }

  // A tag of a field; false for field number 0 and for an end-group tag.
  bool ReadTag(uint32_t* tag);
  bool ReadVarint(uint64_t* value);
  // A length prefix; false if fewer bytes than it says remain to the limit.
  bool ReadLength(int64_t* length);
  // REQUIRES for these: length was read by ReadLength.
  void ReadBytes(int64_t length, std::string* out);   // appends a copy
  void ReadPieces(int64_t length, TensorBytes* out);  // appends references
  // What follows `tag`. depth: the nesting that is still allowed.
  bool SkipField(uint32_t tag, int depth);

  // Narrows the limit to the next `length` bytes, until Widen of what this
  // returned. REQUIRES: length was read by ReadLength; AtLimit at Widen.
  int64_t Narrow(int64_t length);
  void Widen(int64_t outer_remaining) { remaining_ = outer_remaining; }

 private:
  bool ReadByte(uint8_t* byte);
  bool ReadRawTag(uint32_t* tag);
  bool Advance(int64_t length);
  bool SkipGroup(uint32_t start_tag, int depth);
  // The bytes at the cursor that lie in one piece, up to `length`.
  int64_t Contiguous(int64_t length);

  const TensorBytes& bytes_;
  size_t piece_ = 0;   // index of the piece the cursor is in
  size_t offset_ = 0;  // in that piece
  int64_t remaining_;  // bytes to the limit
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_WIRE_READER_H_
