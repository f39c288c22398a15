#include "client/cli/random_call.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/element_conversion.h"

namespace ithaca::client {
namespace {

constexpr int64_t kChunk = 4096;  // elements, even

// SplitMix64's output function: a hash of the position, so that any element
// can be made without those before it.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Box-Muller: two normal numbers out of one hash.
void NormalPair(uint64_t hash, float* pair) {
  const float u = (static_cast<float>(hash >> 40) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(hash & 0xffffffu) * 0x1p-24f;
  const float radius = std::sqrt(-2.0f * std::log(u));
  const float angle = 2.0f * std::numbers::pi_v<float> * v;
  pair[0] = radius * std::cos(angle);
  pair[1] = radius * std::sin(angle);
}

}  // namespace

void FillNormal(uint64_t seed, Tensor* tensor) {
  const int64_t element_bytes = ElementBytes(tensor->dtype());
  const int64_t elements = std::ssize(tensor->bytes()) / element_bytes;
  const int64_t chunks = (elements + kChunk - 1) / kChunk;
  const uint64_t key = Mix(seed);
  const int num_threads = static_cast<int>(std::clamp<int64_t>(
      std::thread::hardware_concurrency(), 1, std::max<int64_t>(chunks, 1)));
  const auto fill = [&](int thread) {
    std::vector<float> numbers(kChunk);
    for (int64_t chunk = thread; chunk < chunks; chunk += num_threads) {
      const int64_t begin = chunk * kChunk;
      const int64_t size = std::min(kChunk, elements - begin);
      for (int64_t i = 0; i < size; i += 2) {
        NormalPair(Mix(key ^ static_cast<uint64_t>(begin + i)), &numbers[i]);
      }
      Narrow(
          tensor->dtype(), std::span(numbers).first(static_cast<size_t>(size)),
          tensor->bytes().subspan(static_cast<size_t>(begin * element_bytes),
                                  static_cast<size_t>(size * element_bytes)));
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(num_threads);
  for (int t = 1; t < num_threads; ++t) threads.emplace_back(fill, t);
  fill(0);
  for (std::thread& thread : threads) thread.join();
}

std::optional<int64_t> TotalBytes(const CallShape& shape) {
  const auto query = DenseBytes(shape.dtype, shape.QueryShape());
  const auto key = DenseBytes(shape.dtype, shape.KeyShape());
  int64_t sum = 0;
  if (!query.has_value() || !key.has_value() ||
      __builtin_add_overflow(*query, *key, &sum) ||
      __builtin_mul_overflow(sum, 2, &sum)) {
    return std::nullopt;
  }
  return sum;
}

absl::StatusOr<AttentionArguments> MakeRandomCall(const CallShape& shape,
                                                  uint64_t seed,
                                                  int64_t max_request_bytes) {
  const auto total = TotalBytes(shape);
  if (!total.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no tensors can have this shape: ", shape.Text()));
  }
  const int64_t request = *total - *DenseBytes(shape.dtype, shape.QueryShape());
  if (request > max_request_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("query, key and value are ", request >> 20,
                     " MiB together, and one message holds at most ",
                     max_request_bytes >> 20,
                     " MiB: choose a smaller shape, or fewer heads or tokens"));
  }
  Tensor query(shape.dtype, shape.QueryShape());
  Tensor key(shape.dtype, shape.KeyShape());
  Tensor value(shape.dtype, shape.KeyShape());
  FillNormal(3 * seed, &query);
  FillNormal(3 * seed + 1, &key);
  FillNormal(3 * seed + 2, &value);
  return AttentionArguments{.query = query.view(),
                            .key = key.view(),
                            .value = value.view(),
                            .layout = shape.Layout()};
}

}  // namespace ithaca::client
