#ifndef ITHACA_SERVER_TENSOR_BYTES_H_
#define ITHACA_SERVER_TENSOR_BYTES_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ithaca::server {

// A run of bytes that lies in pieces, as it came from the network: references
// to gRPC's reference-counted slices, so that taking a part of it copies
// nothing. Received memory lives for as long as any part of it does.
//
// Thread-safety: as a std::vector; the bytes themselves never change.
class TensorBytes {
 public:
  TensorBytes() = default;

  int64_t size() const { return ends_.empty() ? 0 : ends_.back(); }
  bool empty() const { return size() == 0; }

  // Adds a piece at the end; an empty one is dropped.
  void Append(grpc::Slice piece);
  // Adds references to all of other's pieces.
  void Append(const TensorBytes& other);

  // Adds references to bytes [offset, offset + size) of this to `slices`, in
  // order. REQUIRES: 0 <= offset, 0 <= size, offset + size <= this->size().
  // Cost: O(log pieces + pieces touched); no byte is copied.
  void AppendRange(int64_t offset, int64_t size,
                   std::vector<grpc::Slice>* slices) const;

  const std::vector<grpc::Slice>& pieces() const { return pieces_; }

  // The bytes in one string; for tests and for tensors of a few bytes.
  std::string Flatten() const;

 private:
  std::vector<grpc::Slice> pieces_;
  std::vector<int64_t> ends_;  // ends_[i]: bytes in pieces_[0 .. i]
};

// One call's inputs, whole: query [B, S + T, Hq, D] ([B, S, Hq, D] with
// image_queries_only), key and value [B, S + T, Hkv, D].
struct CallTensors {
  TensorBytes query;
  TensorBytes key;
  TensorBytes value;
};

// References to all of a received message. false: gRPC could not decompress
// it.
bool FromByteBuffer(const grpc::ByteBuffer& buffer, TensorBytes* bytes);

// A message of these pieces, in order; valid also if there are none. Pieces
// that are small together are joined by a copy, which costs less than sending
// them apart.
grpc::ByteBuffer ToByteBuffer(const std::vector<grpc::Slice>& pieces);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_TENSOR_BYTES_H_
