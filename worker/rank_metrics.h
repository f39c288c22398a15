#ifndef ITHACA_WORKER_RANK_METRICS_H_
#define ITHACA_WORKER_RANK_METRICS_H_

#include <array>
#include <memory>
#include <string>

#include "worker/ulysses_attention.h"

namespace prometheus {
class Histogram;
class Registry;
}  // namespace prometheus

namespace ithaca {

// What one worker process tells Prometheus: the stages of its own rank, every
// series there at 0 from the start. Calls are counted by the coordinator, once
// each. Thread-safe.
class RankMetrics {
 public:
  RankMetrics(const std::string& version, const std::string& device);
  ~RankMetrics();
  RankMetrics(const RankMetrics&) = delete;
  RankMetrics& operator=(const RankMetrics&) = delete;

  // One call's stages.
  void Observe(const RankReport& report);

  // Prometheus' text format.
  std::string Text() const;

 private:
  const std::unique_ptr<prometheus::Registry> registry_;
  std::array<prometheus::Histogram*, kNumStages> stages_ = {};
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_METRICS_H_
