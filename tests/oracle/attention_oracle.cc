#include "tests/oracle/attention_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace ithaca::oracle {

std::vector<double> Attention(const AttentionShape& shape, double softmax_scale,
                              std::string_view query, std::string_view key,
                              std::string_view value) {
  const std::vector<double> q = Decode(shape.dtype, query);
  const std::vector<double> k = Decode(shape.dtype, key);
  const std::vector<double> v = Decode(shape.dtype, value);
  const int64_t head_dim = shape.head_dim;
  const int64_t keys = shape.key_tokens();
  std::vector<double> out(QueryElements(shape), 0.0);
  std::vector<double> weights(keys);

  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t i = 0; i < shape.query_tokens(); ++i) {
      if (QueryIsPadding(shape, b, i)) continue;
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        const int64_t g = h * shape.num_kv_heads / shape.num_heads;
        const auto key_row = [&](int64_t t) {
          return ((b * keys + t) * shape.num_kv_heads + g) * head_dim;
        };
        const int64_t query_row =
            ((b * shape.query_tokens() + i) * shape.num_heads + h) * head_dim;

        double largest = -std::numeric_limits<double>::infinity();
        for (int64_t t = 0; t < keys; ++t) {
          if (!KeyIsKept(shape, b, t)) continue;
          double dot = 0;
          for (int64_t d = 0; d < head_dim; ++d) {
            dot += q[query_row + d] * k[key_row(t) + d];
          }
          weights[t] = softmax_scale * dot;
          largest = std::max(largest, weights[t]);
        }
        double sum = 0;
        bool any_kept = false;
        for (int64_t t = 0; t < keys; ++t) {
          if (!KeyIsKept(shape, b, t)) continue;
          any_kept = true;
          weights[t] = std::exp(weights[t] - largest);
          sum += weights[t];
          for (int64_t d = 0; d < head_dim; ++d) {
            out[query_row + d] += weights[t] * v[key_row(t) + d];
          }
        }
        if (!any_kept) continue;
        for (int64_t d = 0; d < head_dim; ++d) out[query_row + d] /= sum;
      }
    }
  }
  return out;
}

std::vector<double> Attention(const AttentionShape& shape, double softmax_scale,
                              const CallInputs& inputs) {
  return Attention(shape, softmax_scale, inputs.query, inputs.key,
                   inputs.value);
}

double DefaultScale(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<double>(shape.head_dim));
}

double RelativeL2Error(const std::vector<double>& actual,
                       const std::vector<double>& expected) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(actual[i]) || !std::isfinite(expected[i])) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  if (difference == 0) return 0;
  return std::sqrt(difference / norm);
}

double AcceptedError(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return 1e-5;
    case DataType::kFloat16:
      return 1e-3;
    case DataType::kBFloat16:
      return 8e-3;
  }
  return 0;
}

}  // namespace ithaca::oracle
