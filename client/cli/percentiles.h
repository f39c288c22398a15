#ifndef ITHACA_CLIENT_CLI_PERCENTILES_H_
#define ITHACA_CLIENT_CLI_PERCENTILES_H_

#include <vector>

namespace ithaca::client {

// Of a set of measurements; all 0 for none.
struct Percentiles {
  double min = 0;
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

// Between two measurements a percentile lies on the straight line.
Percentiles Summarize(std::vector<double> measurements);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_CLI_PERCENTILES_H_
