#include "client/reference_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/element_conversion.h"

namespace ithaca::client {
namespace {

// The numbers of one call, checked.
struct Geometry {
  v1::DataType dtype = v1::DATA_TYPE_UNSPECIFIED;
  int64_t batch = 0;
  int64_t query_tokens = 0;
  int64_t key_tokens = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t text_tokens = 0;
  std::vector<int64_t> valid_text_tokens;  // one for each batch element
  bool text_first = false;
  bool image_queries_only = false;
  double scale = 0;

  bool IsPaddedQuery(int64_t batch_index, int64_t token) const {
    if (image_queries_only) return false;
    const int64_t text_start = text_first ? 0 : query_tokens - text_tokens;
    const int64_t text_index = token - text_start;
    return text_index >= valid_text_tokens[batch_index] &&
           text_index < text_tokens;
  }
};

absl::Status BadShape(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("no attention call to compare with: ", what));
}

bool IsWhole(const TensorView& tensor) {
  return (tensor.shape.size() == 3 || tensor.shape.size() == 4) &&
         DenseBytes(tensor.dtype, tensor.shape) ==
             static_cast<int64_t>(tensor.bytes.size());
}

absl::StatusOr<Geometry> MakeGeometry(const AttentionArguments& call,
                                      const Tensor& output) {
  const TensorView& query = call.query;
  const TensorView& key = call.key;
  if (!IsWhole(query) || !IsWhole(key) || !IsWhole(call.value)) {
    return BadShape("a tensor is not [batch, tokens, heads, head_dim]");
  }
  if (key.shape != call.value.shape || key.dtype != query.dtype ||
      call.value.dtype != query.dtype ||
      key.shape.size() != query.shape.size()) {
    return BadShape("query, key and value differ in dtype or rank");
  }
  if (output.shape() != query.shape || output.dtype() != query.dtype) {
    return BadShape("the output is not of the query's shape and dtype");
  }
  const size_t tokens_at = query.shape.size() - 3;
  Geometry g;
  g.dtype = query.dtype;
  g.batch = tokens_at == 1 ? query.shape[0] : 1;
  g.query_tokens = query.shape[tokens_at];
  g.key_tokens = key.shape[tokens_at];
  g.heads = query.shape[tokens_at + 1];
  g.kv_heads = key.shape[tokens_at + 1];
  g.head_dim = query.shape[tokens_at + 2];
  g.text_tokens = call.layout.text_tokens();
  g.text_first = call.layout.order() == v1::TOKEN_ORDER_TEXT_FIRST;
  g.image_queries_only = call.layout.image_queries_only();
  const auto& valid = call.layout.valid_text_tokens();
  g.valid_text_tokens.assign(valid.begin(), valid.end());
  if (valid.empty()) g.valid_text_tokens.assign(g.batch, g.text_tokens);
  const int64_t expected_queries =
      g.key_tokens - (g.image_queries_only ? g.text_tokens : 0);
  if (g.text_tokens < 0 || g.text_tokens > g.key_tokens ||
      g.query_tokens != expected_queries || g.head_dim != key.shape.back() ||
      (tokens_at == 1 && key.shape[0] != g.batch) || g.kv_heads < 1 ||
      g.heads % g.kv_heads != 0 || std::ssize(g.valid_text_tokens) != g.batch) {
    return BadShape("shapes and layout do not fit together");
  }
  for (const int64_t v : g.valid_text_tokens) {
    if (v < 0 || v > g.text_tokens) return BadShape("valid_text_tokens");
  }
  g.scale = call.options.has_softmax_scale()
                ? call.options.softmax_scale()
                : 1.0 / std::sqrt(static_cast<double>(g.head_dim));
  return g;
}

// Row (batch_index, token, head) of a [batch, tokens, heads, head_dim] tensor.
void LoadRow(const Geometry& g, std::span<const std::byte> bytes,
             int64_t tokens, int64_t heads, int64_t batch_index, int64_t token,
             int64_t head, std::span<double> row) {
  const size_t row_bytes =
      static_cast<size_t>(g.head_dim * ElementBytes(g.dtype));
  const int64_t index = (batch_index * tokens + token) * heads + head;
  Widen(g.dtype,
        bytes.subspan(static_cast<size_t>(index) * row_bytes, row_bytes), row);
}

// The kept rows of one batch element and kv head, [kept, head_dim].
std::vector<double> LoadKept(const Geometry& g, const TensorView& tensor,
                             int64_t batch_index, int64_t kv_head) {
  std::vector<double> rows;
  const int64_t text_start = g.text_first ? 0 : g.key_tokens - g.text_tokens;
  const int64_t padding_start = text_start + g.valid_text_tokens[batch_index];
  const int64_t padding_end = text_start + g.text_tokens;
  rows.reserve(static_cast<size_t>(g.key_tokens * g.head_dim));
  for (int64_t token = 0; token < g.key_tokens; ++token) {
    if (token >= padding_start && token < padding_end) continue;
    rows.resize(rows.size() + g.head_dim);
    LoadRow(g, tensor.bytes, g.key_tokens, g.kv_heads, batch_index, token,
            kv_head, std::span(rows).last(static_cast<size_t>(g.head_dim)));
  }
  return rows;
}

double Dot(const double* a, const double* b, int64_t size) {
  // Four sums, so that one addition need not wait for the other.
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= size; i += 4) {
    for (int lane = 0; lane < 4; ++lane)
      sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < size; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void AttendRow(const Geometry& g, std::span<const double> query,
               std::span<const double> keys, std::span<const double> values,
               std::vector<double>& weights, std::span<double> out) {
  std::fill(out.begin(), out.end(), 0.0);
  const int64_t kept = std::ssize(keys) / g.head_dim;
  if (kept == 0) return;
  weights.resize(kept);
  double maximum = -std::numeric_limits<double>::infinity();
  for (int64_t t = 0; t < kept; ++t) {
    weights[t] =
        g.scale * Dot(query.data(), keys.data() + t * g.head_dim, g.head_dim);
    maximum = std::max(maximum, weights[t]);
  }
  double sum = 0;
  for (int64_t t = 0; t < kept; ++t) {
    const double weight = std::exp(weights[t] - maximum);
    sum += weight;
    const double* value = values.data() + t * g.head_dim;
    for (int64_t d = 0; d < g.head_dim; ++d) out[d] += weight * value[d];
  }
  for (double& element : out) element /= sum;
}

struct Sums {
  double squared_difference = 0;
  double squared_reference = 0;

  void Add(double got, double expected) {
    if (!std::isfinite(got) || !std::isfinite(expected)) {
      const bool same =
          got == expected || (std::isnan(got) && std::isnan(expected));
      if (!same) squared_difference = std::numeric_limits<double>::infinity();
      return;
    }
    squared_difference += (got - expected) * (got - expected);
    squared_reference += expected * expected;
  }
};

// `count` of the tokens 0..total-1, evenly spread, the first and last included.
std::vector<int64_t> SpreadTokens(int64_t total, int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(count == 1 ? total / 2 : i * (total - 1) / (count - 1));
  }
  return tokens;
}

int NumThreads(const ReferenceOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

absl::StatusOr<OutputError> CompareWithReference(
    const AttentionArguments& call, const Tensor& output,
    const ReferenceOptions& options) {
  const auto geometry = MakeGeometry(call, output);
  if (!geometry.ok()) return geometry.status();
  const Geometry& g = *geometry;
  OutputError error;
  error.all_rows = g.batch * g.query_tokens * g.heads;
  if (error.all_rows == 0 || g.head_dim == 0) return error;

  const double row_cost = 2.0 * static_cast<double>(g.key_tokens * g.head_dim);
  const double rows_per_head = options.max_multiply_adds / row_cost /
                               static_cast<double>(g.batch * g.heads);
  const auto tokens = SpreadTokens(
      g.query_tokens,
      static_cast<int64_t>(
          std::clamp(rows_per_head, 1.0, static_cast<double>(g.query_tokens))));
  error.compared_rows = std::ssize(tokens) * g.batch * g.heads;

  const int64_t group = g.heads / g.kv_heads;
  const int64_t rows = std::ssize(tokens) * group;  // of one kv head
  const int num_threads =
      static_cast<int>(std::min<int64_t>(NumThreads(options), rows));
  std::vector<Sums> sums(num_threads);
  for (int64_t unit = 0; unit < g.batch * g.kv_heads; ++unit) {
    const int64_t b = unit / g.kv_heads;
    const int64_t kv_head = unit % g.kv_heads;
    const std::vector<double> keys = LoadKept(g, call.key, b, kv_head);
    const std::vector<double> values = LoadKept(g, call.value, b, kv_head);
    const auto compare_rows = [&](int thread) {
      std::vector<double> query(g.head_dim);
      std::vector<double> expected(g.head_dim);
      std::vector<double> got(g.head_dim);
      std::vector<double> weights;
      for (int64_t row = thread; row < rows; row += num_threads) {
        const int64_t token = tokens[row / group];
        const int64_t head = kv_head * group + row % group;
        LoadRow(g, output.bytes(), g.query_tokens, g.heads, b, token, head,
                got);
        if (g.IsPaddedQuery(b, token)) {
          std::fill(expected.begin(), expected.end(), 0.0);
        } else {
          LoadRow(g, call.query.bytes, g.query_tokens, g.heads, b, token, head,
                  query);
          AttendRow(g, query, keys, values, weights, expected);
        }
        for (int64_t d = 0; d < g.head_dim; ++d) {
          sums[thread].Add(got[d], expected[d]);
        }
      }
    };
    std::vector<std::thread> threads;
    threads.reserve(num_threads);
    for (int t = 1; t < num_threads; ++t) threads.emplace_back(compare_rows, t);
    compare_rows(0);
    for (std::thread& thread : threads) thread.join();
  }

  Sums total;
  for (const Sums& part : sums) {
    total.squared_difference += part.squared_difference;
    total.squared_reference += part.squared_reference;
  }
  error.relative_l2 = std::sqrt(total.squared_difference);
  // All-zero references leave the absolute error.
  if (total.squared_reference > 0) {
    error.relative_l2 /= std::sqrt(total.squared_reference);
  }
  return error;
}

double RelativeL2Limit(v1::DataType dtype,
                       v1::CommunicationPrecision precision) {
  const double rounding = dtype == v1::DATA_TYPE_FLOAT32   ? 1e-5
                          : dtype == v1::DATA_TYPE_FLOAT16 ? 1e-3
                                                           : 8e-3;
  switch (precision) {
    case v1::COMMUNICATION_PRECISION_FP8_E4M3:
      return rounding + 6.5e-2;
    case v1::COMMUNICATION_PRECISION_INT8:
      return rounding + 2e-2;
    default:
      return rounding;
  }
}

}  // namespace ithaca::client
