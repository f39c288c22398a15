#include "worker/rank_metrics.h"

#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace ithaca {

RankMetrics::RankMetrics(const std::string& version, const std::string& device)
    : registry_(std::make_unique<prometheus::Registry>()) {
  prometheus::BuildGauge()
      .Name("ithaca_build_info")
      .Help("1, labelled with this program's version and device.")
      .Register(*registry_)
      .Add({{"version", version}, {"device", device}})
      .Set(1);
  auto& family = prometheus::BuildHistogram()
                     .Name("ithaca_stage_duration_seconds")
                     .Help("A call's time in a stage, on this worker's rank.")
                     .Register(*registry_);
  // The coordinator's buckets too: 0.1 ms to 120 s.
  const prometheus::Histogram::BucketBoundaries buckets = {
      0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
      0.25,   0.5,     1,      2.5,   5,      10,    30,   60,    120};
  for (int i = 0; i < kNumStages; ++i) {
    stages_[static_cast<size_t>(i)] = &family.Add(
        {{"stage", std::string(Name(static_cast<Stage>(i)))}}, buckets);
  }
}

RankMetrics::~RankMetrics() = default;

void RankMetrics::Observe(const RankReport& report) {
  for (size_t i = 0; i < stages_.size(); ++i) {
    stages_[i]->Observe(report.stage_seconds[i]);
  }
}

std::string RankMetrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

}  // namespace ithaca
