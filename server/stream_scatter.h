#ifndef ITHACA_SERVER_STREAM_SCATTER_H_
#define ITHACA_SERVER_STREAM_SCATTER_H_

#include <array>
#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "server/token_axis.h"

namespace ithaca::server {

// Which of a call's tensors travel in chunks; the others lie in regions.
struct ChunkedTensors {
  bool query = true;
  bool key = true;
  bool value = true;
  bool output = true;
};

enum class InputRole : uint8_t { kQuery, kKey, kValue };
inline constexpr std::array<InputRole, 3> kInputRoles = {
    InputRole::kQuery, InputRole::kKey, InputRole::kValue};

// Bytes of a chunk that go to one rank.
struct RankPart {
  int rank = 0;
  int64_t chunk_offset = 0;  // from the chunk's first byte
  int64_t rank_offset = 0;   // in what would be RunAttentionRequest.tensors
  int64_t size = 0;
  friend bool operator==(const RankPart&, const RankPart&) = default;
};

// Where each byte of the caller's tensors goes: an image row to the rank whose
// share it is in, a text row to every rank. So a chunk can be passed on the
// moment it comes, in whatever pieces its sender cut the tensor. Immutable.
class StreamScatter {
 public:
  StreamScatter(const SequenceParallelPlan& plan,
                const ChunkedTensors& chunked);

  // Bytes of the tensor that come in chunks: all or none.
  int64_t tensor_bytes(InputRole role) const { return of(role).tensor_bytes; }
  // Bytes that the rank is sent in all.
  int64_t rank_bytes(int rank) const {
    return rank_bytes_[static_cast<size_t>(rank)];
  }

  // The parts of bytes [offset, offset + size) of the tensor.
  // REQUIRES: 0 <= offset, 0 <= size, offset + size <= tensor_bytes(role).
  std::vector<RankPart> Split(InputRole role, int64_t offset,
                              int64_t size) const;

 private:
  struct Tensor {
    TokenAxis axis;
    int64_t tensor_bytes = 0;
    std::vector<int64_t> image_base;  // by rank: of its image rows
    std::vector<int64_t> text_base;   // by rank: of the text rows
  };
  const Tensor& of(InputRole role) const {
    return tensors_[static_cast<size_t>(role)];
  }

  std::vector<Range> shares_;  // image tokens, by rank
  std::array<Tensor, 3> tensors_;
  std::vector<int64_t> rank_bytes_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_STREAM_SCATTER_H_
