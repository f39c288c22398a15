#include "server/stream_scatter.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/sequence_parallel_plan.h"
#include "server/token_axis.h"

namespace ithaca::server {

StreamScatter::StreamScatter(const SequenceParallelPlan& plan,
                             const ChunkedTensors& chunked) {
  const AttentionShape& shape = plan.shape;
  for (const RankShare& rank : plan.ranks) {
    shares_.push_back(rank.image_tokens);
  }
  const std::array<bool, 3> present = {chunked.query, chunked.key,
                                       chunked.value};
  for (const InputRole role : kInputRoles) {
    const auto index = static_cast<size_t>(role);
    Tensor& tensor = tensors_[index];
    tensor.axis = role == InputRole::kQuery ? QueryAxis(shape) : KeyAxis(shape);
    tensor.tensor_bytes =
        present[index] ? shape.batch * tensor.axis.bytes() : 0;
  }
  // The order of RunAttentionRequest.tensors: all image rows, all text rows.
  for (const Range& share : shares_) {
    int64_t end = 0;
    for (Tensor& tensor : tensors_) {
      tensor.image_base.push_back(end);
      if (tensor.tensor_bytes > 0) {
        end += shape.batch * share.size * tensor.axis.row_bytes;
      }
    }
    for (Tensor& tensor : tensors_) {
      tensor.text_base.push_back(end);
      if (tensor.tensor_bytes > 0) {
        end += shape.batch * tensor.axis.text_bytes();
      }
    }
    rank_bytes_.push_back(end);
  }
}

std::vector<RankPart> StreamScatter::Split(InputRole role, int64_t offset,
                                           int64_t size) const {
  const Tensor& tensor = of(role);
  const TokenAxis& axis = tensor.axis;
  std::vector<RankPart> parts;
  for (int64_t done = 0; done < size;) {
    const int64_t b = (offset + done) / axis.bytes();
    const int64_t at = (offset + done) % axis.bytes();
    const int64_t in_text = at - axis.text_begin();
    if (in_text >= 0 && in_text < axis.text_bytes()) {
      const int64_t part = std::min(size - done, axis.text_bytes() - in_text);
      for (size_t rank = 0; rank < shares_.size(); ++rank) {
        parts.push_back(
            {static_cast<int>(rank), done,
             tensor.text_base[rank] + b * axis.text_bytes() + in_text, part});
      }
      done += part;
      continue;
    }
    const int64_t in_image = at - axis.image_begin();
    const int64_t token = in_image / axis.row_bytes;
    // The last share that begins at or before the token; those behind the
    // image's end are empty and begin there.
    const auto next = std::upper_bound(
        shares_.begin(), shares_.end(), token,
        [](int64_t value, const Range& share) { return value < share.begin; });
    const auto rank = static_cast<size_t>(next - shares_.begin()) - 1;
    const int64_t share_begin = shares_[rank].begin * axis.row_bytes;
    const int64_t share_bytes = shares_[rank].size * axis.row_bytes;
    const int64_t in_share = in_image - share_begin;
    const int64_t part = std::min(size - done, share_bytes - in_share);
    parts.push_back({static_cast<int>(rank), done,
                     tensor.image_base[rank] + b * share_bytes + in_share,
                     part});
    done += part;
  }
  return parts;
}

}  // namespace ithaca::server
