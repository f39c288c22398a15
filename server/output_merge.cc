#include "server/output_merge.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/sequence_parallel_plan.h"
#include "server/rank_message.h"
#include "server/tensor_bytes.h"
#include "server/token_axis.h"

namespace ithaca::server {

// A batch element has a segment for each rank's image rows and one for the
// text, in the caller's order.
OutputMerge::OutputMerge(const SequenceParallelPlan& plan, bool chunked)
    : num_segments_(chunked ? plan.shape.batch * (plan.world_size + 1) : 0),
      axis_(QueryAxis(plan.shape)),
      text_rank_(static_cast<size_t>(TextOutputRank(plan))),
      sources_(plan.ranks.size()) {
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const int64_t image = plan.ranks[rank].image_tokens.size * axis_.row_bytes;
    share_bytes_.push_back(image);
    if (!chunked) continue;
    const int64_t text = rank == text_rank_ ? axis_.text_bytes() : 0;
    sources_[rank].bytes = plan.shape.batch * (image + text);
    total_bytes_ += sources_[rank].bytes;
  }
}

int64_t OutputMerge::rank_bytes(int rank) const {
  return sources_[static_cast<size_t>(rank)].bytes;
}

OutputMerge::Segment OutputMerge::At(int64_t index) const {
  const auto ranks = static_cast<int64_t>(share_bytes_.size());
  int64_t slot = index % (ranks + 1);
  const int64_t text_slot = axis_.text_first ? 0 : ranks;
  if (slot == text_slot) return {text_rank_, axis_.text_bytes()};
  if (axis_.text_first) --slot;
  const auto rank = static_cast<size_t>(slot);
  return {rank, share_bytes_[rank]};
}

absl::Status OutputMerge::Append(int rank, uint64_t offset,
                                 const TensorBytes& bytes) {
  Source& source = sources_[static_cast<size_t>(rank)];
  if (offset != static_cast<uint64_t>(source.received)) {
    return absl::InternalError(
        absl::StrCat("rank ", rank, "'s output: expected a chunk at offset ",
                     source.received, ", got one at ", offset));
  }
  if (bytes.size() > source.bytes - source.received) {
    return absl::InternalError(
        absl::StrCat("rank ", rank, "'s output: expected ", source.bytes,
                     " bytes, got at least ", source.received + bytes.size()));
  }
  source.received += bytes.size();
  buffered_ += bytes.size();
  source.pieces.insert(source.pieces.end(), bytes.pieces().begin(),
                       bytes.pieces().end());
  AdvanceFrontier();
  return absl::OkStatus();
}

void OutputMerge::AdvanceFrontier() {
  while (frontier_.segment < num_segments_) {
    const Segment segment = At(frontier_.segment);
    Source& source = sources_[segment.rank];
    const int64_t step = std::min(segment.bytes - frontier_.behind,
                                  source.received - source.passed);
    source.passed += step;
    contiguous_ += step;
    frontier_.behind += step;
    if (frontier_.behind < segment.bytes) return;
    ++frontier_.segment;
    frontier_.behind = 0;
  }
}

std::optional<int> OutputMerge::WantedRank() const {
  if (contiguous_ == total_bytes_) return std::nullopt;
  // Empty segments at the frontier, before any byte has come.
  int64_t segment = frontier_.segment;
  while (At(segment).bytes == 0) ++segment;
  return static_cast<int>(At(segment).rank);
}

TensorBytes OutputMerge::Take(int64_t most) {
  TensorBytes bytes;
  int64_t left = std::min(most, contiguous_ - taken_);
  taken_ += left;
  buffered_ -= left;
  while (left > 0) {
    const Segment segment = At(next_.segment);
    Source& source = sources_[segment.rank];
    int64_t in_segment = std::min(left, segment.bytes - next_.behind);
    left -= in_segment;
    next_.behind += in_segment;
    while (in_segment > 0) {
      grpc::Slice& piece = source.pieces.front();
      const auto size = static_cast<int64_t>(piece.size());
      if (size <= in_segment) {
        in_segment -= size;
        bytes.Append(std::move(piece));
        source.pieces.pop_front();
      } else {
        const auto cut = static_cast<size_t>(in_segment);
        bytes.Append(piece.sub(0, cut));
        piece = piece.sub(cut, piece.size());
        in_segment = 0;
      }
    }
    if (next_.behind == segment.bytes) {
      ++next_.segment;
      next_.behind = 0;
    }
  }
  return bytes;
}

}  // namespace ithaca::server
