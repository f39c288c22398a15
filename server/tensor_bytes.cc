#include "server/tensor_bytes.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ithaca::server {

namespace {

// A page: below it one memcpy is cheaper than the references and the longer
// scatter list of separate pieces.
constexpr size_t kJoinBelowBytes = 4096;

}  // namespace

void TensorBytes::Append(grpc::Slice piece) {
  if (piece.size() == 0) return;
  ends_.push_back(size() + static_cast<int64_t>(piece.size()));
  pieces_.push_back(std::move(piece));
}

void TensorBytes::Append(const TensorBytes& other) {
  pieces_.reserve(pieces_.size() + other.pieces_.size());
  ends_.reserve(ends_.size() + other.ends_.size());
  for (const grpc::Slice& piece : other.pieces_) Append(piece);
}

void TensorBytes::AppendRange(int64_t offset, int64_t size,
                              std::vector<grpc::Slice>* slices) const {
  assert(offset >= 0 && size >= 0 && offset <= this->size() - size);
  if (size == 0) return;
  auto index = static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
  const int64_t end = offset + size;
  while (offset < end) {
    const grpc::Slice& piece = pieces_[index];
    const int64_t piece_begin = index == 0 ? 0 : ends_[index - 1];
    const int64_t take_end = std::min(end, ends_[index]);
    if (offset == piece_begin && take_end == ends_[index]) {
      slices->push_back(piece);
    } else {
      slices->push_back(piece.sub(static_cast<size_t>(offset - piece_begin),
                                  static_cast<size_t>(take_end - piece_begin)));
    }
    offset = take_end;
    ++index;
  }
}

std::string TensorBytes::Flatten() const {
  std::string bytes;
  bytes.reserve(static_cast<size_t>(size()));
  for (const grpc::Slice& piece : pieces_) {
    bytes.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
  }
  return bytes;
}

bool FromByteBuffer(const grpc::ByteBuffer& buffer, TensorBytes* bytes) {
  std::vector<grpc::Slice> pieces;
  if (!buffer.Dump(&pieces).ok()) return false;
  for (grpc::Slice& piece : pieces) bytes->Append(std::move(piece));
  return true;
}

grpc::ByteBuffer ToByteBuffer(const std::vector<grpc::Slice>& pieces) {
  size_t size = 0;
  for (const grpc::Slice& piece : pieces) size += piece.size();
  if (pieces.size() == 1 || size > kJoinBelowBytes) {
    return grpc::ByteBuffer(pieces.data(), pieces.size());
  }
  std::string joined;
  joined.reserve(size);
  for (const grpc::Slice& piece : pieces) {
    joined.append(reinterpret_cast<const char*>(piece.begin()), piece.size());
  }
  const grpc::Slice whole(joined);
  return grpc::ByteBuffer(&whole, 1);
}

}  // namespace ithaca::server
