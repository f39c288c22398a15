#include "client/cli/percentiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ithaca::client {
namespace {

double At(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(position));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above],
                   position - static_cast<double>(below));
}

}  // namespace

Percentiles Summarize(std::vector<double> measurements) {
  if (measurements.empty()) return {};
  std::sort(measurements.begin(), measurements.end());
  const double sum =
      std::accumulate(measurements.begin(), measurements.end(), 0.0);
  return {.min = measurements.front(),
          .mean = sum / static_cast<double>(measurements.size()),
          .p50 = At(measurements, 0.50),
          .p90 = At(measurements, 0.90),
          .p99 = At(measurements, 0.99),
          .max = measurements.back()};
}

}  // namespace ithaca::client
