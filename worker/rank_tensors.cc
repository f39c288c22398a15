#include "worker/rank_tensors.h"

namespace ithaca {
namespace {

// Whole rows of one batch element of `tokens` tokens with `heads` heads each.
int64_t ElementBytes(const AttentionShape& shape, int64_t tokens,
                     int64_t heads) {
  return tokens * heads * shape.head_dim * ByteSize(shape.dtype);
}

int64_t ImageTokens(const SequenceParallelPlan& plan, int rank) {
  return plan.ranks[static_cast<size_t>(rank)].image_tokens.size;
}

}  // namespace

RankTensorBytes BytesOfRank(const SequenceParallelPlan& plan, int rank) {
  const AttentionShape& shape = plan.shape;
  const int64_t image = ImageTokens(plan, rank);
  RankTensorBytes bytes;
  bytes.image_query = shape.batch * ElementBytes(shape, image, shape.num_heads);
  bytes.image_key =
      shape.batch * ElementBytes(shape, image, shape.num_kv_heads);
  bytes.text_query =
      shape.batch *
      ElementBytes(shape, shape.text_query_tokens(), shape.num_heads);
  bytes.text_key =
      shape.batch * ElementBytes(shape, shape.text_tokens, shape.num_kv_heads);
  return bytes;
}

std::vector<ByteRange> OutputInTokenOrder(const SequenceParallelPlan& plan,
                                          int rank, bool with_text) {
  const AttentionShape& shape = plan.shape;
  const int64_t image =
      ElementBytes(shape, ImageTokens(plan, rank), shape.num_heads);
  const int64_t text =
      with_text
          ? ElementBytes(shape, shape.text_query_tokens(), shape.num_heads)
          : 0;
  std::vector<ByteRange> ranges;
  const auto append = [&ranges](int64_t begin, int64_t size) {
    if (size == 0) return;
    if (!ranges.empty() && ranges.back().begin + ranges.back().size == begin) {
      ranges.back().size += size;
    } else {
      ranges.push_back({begin, size});
    }
  };
  for (int64_t b = 0; b < shape.batch; ++b) {
    const int64_t text_begin = shape.batch * image + b * text;
    if (shape.order == TokenOrder::kTextFirst) append(text_begin, text);
    append(b * image, image);
    if (shape.order == TokenOrder::kImageFirst) append(text_begin, text);
  }
  return ranges;
}

}  // namespace ithaca
