#include "worker/rank_tensors.h"

namespace ithaca {
namespace {

// Whole rows of one batch element of `tokens` tokens with `heads` heads each.
int64_t ElementBytes(const AttentionShape& shape, int64_t tokens,
                     int64_t heads) {
  return tokens * heads * shape.head_dim * ByteSize(shape.dtype);
}

bool IsOfQuery(TensorRole role) {
  return role == TensorRole::kQuery || role == TensorRole::kOutput;
}

// What a tensor's rows are made of.
struct Rows {
  int64_t bytes = 0;  // of one row
  int64_t image = 0;  // the first image row of a batch element
  int64_t text = 0;
  int64_t text_tokens = 0;
  int64_t tokens = 0;
};

Rows RowsOf(const AttentionShape& shape, TensorRole role) {
  const bool query = IsOfQuery(role);
  Rows rows;
  rows.bytes =
      ElementBytes(shape, 1, query ? shape.num_heads : shape.num_kv_heads);
  rows.text_tokens = query ? shape.text_query_tokens() : shape.text_tokens;
  rows.tokens = shape.image_tokens + rows.text_tokens;
  const bool text_first = shape.order == TokenOrder::kTextFirst;
  rows.image = text_first ? rows.text_tokens : 0;
  rows.text = text_first ? 0 : shape.image_tokens;
  return rows;
}

int64_t ImageTokens(const SequenceParallelPlan& plan, int rank) {
  return plan.ranks[static_cast<size_t>(rank)].image_tokens.size;
}

}  // namespace

int64_t WholeTensorBytes(const AttentionShape& shape, TensorRole role) {
  const Rows rows = RowsOf(shape, role);
  return shape.batch * rows.tokens * rows.bytes;
}

RowBlocks ImageRows(const SequenceParallelPlan& plan, int rank,
                    TensorRole role) {
  const Rows rows = RowsOf(plan.shape, role);
  const Range share = plan.ranks[static_cast<size_t>(rank)].image_tokens;
  return {(rows.image + share.begin) * rows.bytes, share.size * rows.bytes,
          rows.tokens * rows.bytes, plan.shape.batch};
}

RowBlocks TextRows(const SequenceParallelPlan& plan, TensorRole role) {
  const Rows rows = RowsOf(plan.shape, role);
  return {rows.text * rows.bytes, rows.text_tokens * rows.bytes,
          rows.tokens * rows.bytes, plan.shape.batch};
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
