#include "server/metrics.h"

#include <grpcpp/support/status.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/attention_call.h"
#include "server/group_manager.h"
#include "server/memory_region.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

constexpr size_t kNumMethods = 8;
constexpr size_t kNumCodes = 17;
constexpr size_t kNumStates = 4;
constexpr size_t kNumReasons = 5;
constexpr size_t kNumPrecisions = 3;
constexpr std::array<const char*, 4> kPlaneNames = {
    "unary", "stream", "shared_memory", "cuda_memory"};

// From a tiny call on an idle server to a long video's on a busy one. The same
// for every histogram, so that they add up across pods and releases.
prometheus::Histogram::BucketBoundaries Buckets() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
          0.25,   0.5,     1,      2.5,   5,      10,    30,   60,    120};
}

int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <typename Enum>
constexpr size_t Index(Enum value) {
  return static_cast<size_t>(value);
}

}  // namespace

std::string_view Name(Plane plane) { return kPlaneNames[Index(plane)]; }

std::string_view Name(Method method) {
  switch (method) {
    case Method::kAttention:
      return "Attention";
    case Method::kStreamAttention:
      return "StreamAttention";
    case Method::kGetServerInfo:
      return "GetServerInfo";
    case Method::kKeepLease:
      return "KeepLease";
    case Method::kRegisterSharedMemory:
      return "RegisterSharedMemory";
    case Method::kRegisterCudaMemory:
      return "RegisterCudaMemory";
    case Method::kUnregisterMemory:
      return "UnregisterMemory";
    case Method::kListMemory:
      return "ListMemory";
  }
  return "unknown";
}

struct Metrics::Families {
  prometheus::Registry registry;

  std::array<std::array<prometheus::Counter*, kNumCodes>, kNumMethods> requests;
  std::array<prometheus::Histogram*, kNumMethods> request_duration;
  prometheus::Histogram* queue_duration;
  std::map<std::string_view, prometheus::Histogram*> stage_duration;
  std::array<std::array<prometheus::Counter*, 2>, kPlaneNames.size()>
      tensor_bytes;
  std::array<prometheus::Counter*, kNumPrecisions> communication_bytes;
  prometheus::Gauge* in_flight_requests;
  prometheus::Gauge* in_flight_bytes;
  prometheus::Gauge* queued_requests;
  std::array<prometheus::Gauge*, kNumStates> groups;
  prometheus::Gauge* joined_workers;
  prometheus::Gauge* forming_workers;
  prometheus::Gauge* grouped_workers;
  std::array<prometheus::Counter*, 2> group_formations;
  std::array<prometheus::Counter*, kNumReasons> group_failures;
  prometheus::Counter* retries;
  std::array<prometheus::Gauge*, 2> regions;  // by MemoryKind
  std::array<prometheus::Gauge*, 2> region_bytes;
  prometheus::Gauge* leases;
  prometheus::Counter* leases_expired;

  prometheus::Family<prometheus::Counter>& Counters(const char* name,
                                                    const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<prometheus::Gauge>& Gauges(const char* name,
                                                const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  prometheus::Family<prometheus::Histogram>& Histograms(const char* name,
                                                        const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(
        registry);
  }

  void BuildRequests();
  void BuildTensors();
  void BuildGroups();
  void BuildMemory();
};

void Metrics::Families::BuildRequests() {
  auto& requests_total =
      Counters("ithaca_requests_total", "Calls that ended, by status code.");
  auto& duration = Histograms("ithaca_request_duration_seconds",
                              "From a call's arrival to its end.");
  for (size_t method = 0; method < kNumMethods; ++method) {
    const std::string name(Name(static_cast<Method>(method)));
    for (size_t code = 0; code < kNumCodes; ++code) {
      requests[method][code] = &requests_total.Add(
          {{"method", name},
           {"code",
            std::string(CodeName(static_cast<grpc::StatusCode>(code)))}});
    }
    request_duration[method] = &duration.Add({{"method", name}}, Buckets());
  }
  queue_duration =
      &Histograms("ithaca_queue_duration_seconds",
                  "From a call's admission to its dispatch to a group.")
           .Add({}, Buckets());
  auto& stages =
      Histograms("ithaca_stage_duration_seconds",
                 "A call's time in a stage, that of its slowest rank.");
  for (const std::string_view stage : kStageNames) {
    stage_duration[stage] =
        &stages.Add({{"stage", std::string(stage)}}, Buckets());
  }
  in_flight_requests =
      &Gauges("ithaca_in_flight_requests", "Calls that arrived and run.")
           .Add({});
  in_flight_bytes = &Gauges("ithaca_in_flight_bytes",
                            "Tensor bytes of admitted calls, queued or "
                            "running, outputs included.")
                         .Add({});
  queued_requests =
      &Gauges("ithaca_queued_requests", "Calls that wait for a group.").Add({});
  retries = &Counters("ithaca_retries_total",
                      "Calls sent to another group after theirs was lost.")
                 .Add({});
}

void Metrics::Families::BuildTensors() {
  auto& bytes = Counters("ithaca_tensor_bytes_total",
                         "Tensor bytes taken from and given to clients.");
  for (size_t plane = 0; plane < kPlaneNames.size(); ++plane) {
    for (size_t direction = 0; direction < 2; ++direction) {
      tensor_bytes[plane][direction] =
          &bytes.Add({{"plane", kPlaneNames[plane]},
                      {"direction", direction == 0 ? "in" : "out"}});
    }
  }
  auto& communication = Counters("ithaca_communication_bytes_total",
                                 "Bytes that ranks sent to each other.");
  for (size_t precision = 0; precision < kNumPrecisions; ++precision) {
    communication_bytes[precision] = &communication.Add(
        {{"precision", std::string(ithaca::Name(
                           static_cast<CommunicationPrecision>(precision)))}});
  }
}

void Metrics::Families::BuildGroups() {
  auto& groups_by_state = Gauges("ithaca_groups", "Groups, by state.");
  for (size_t state = 0; state < kNumStates; ++state) {
    groups[state] = &groups_by_state.Add(
        {{"state", std::string(server::Name(static_cast<GroupState>(state)))}});
  }
  auto& workers = Gauges("ithaca_workers", "Workers that joined, by state.");
  joined_workers = &workers.Add({{"state", "joined"}});
  forming_workers = &workers.Add({{"state", "forming"}});
  grouped_workers = &workers.Add({{"state", "in_group"}});
  auto& formations = Counters("ithaca_group_formations_total",
                              "Attempts to form a group, by result.");
  group_formations[0] = &formations.Add({{"result", "failed"}});
  group_formations[1] = &formations.Add({{"result", "formed"}});
  auto& failures =
      Counters("ithaca_group_failures_total", "Groups lost, by reason.");
  for (size_t reason = 0; reason < kNumReasons; ++reason) {
    group_failures[reason] = &failures.Add(
        {{"reason",
          std::string(server::Name(static_cast<GroupFailureReason>(reason)))}});
  }
}

void Metrics::Families::BuildMemory() {
  auto& by_kind = Gauges("ithaca_memory_regions", "Registered regions.");
  auto& bytes_by_kind =
      Gauges("ithaca_memory_region_bytes", "Bytes of registered regions.");
  for (const MemoryKind kind : {MemoryKind::kShared, MemoryKind::kCuda}) {
    const std::string name(server::Name(kind));
    regions[Index(kind)] = &by_kind.Add({{"kind", name}});
    region_bytes[Index(kind)] = &bytes_by_kind.Add({{"kind", name}});
  }
  leases = &Gauges("ithaca_leases", "Open memory leases.").Add({});
  leases_expired =
      &Counters("ithaca_leases_expired_total",
                "Leases that ended by their client's end, or with its "
                "connection, and let go of regions.")
           .Add({});
}

Metrics::Metrics(const std::string& version, const std::string& device)
    : families_(std::make_unique<Families>()) {
  families_->BuildRequests();
  families_->BuildTensors();
  families_->BuildGroups();
  families_->BuildMemory();
  families_->Gauges("ithaca_build_info", "1, with what this process is.")
      .Add({{"version", version}, {"device", device}})
      .Set(1);
}

Metrics::~Metrics() = default;

void Metrics::CountRequest(Method method, grpc::StatusCode code,
                           double seconds) {
  const auto index = static_cast<size_t>(code);
  families_
      ->requests[Index(method)]
                [index < kNumCodes ? index : Index(grpc::StatusCode::UNKNOWN)]
      ->Increment();
  families_->request_duration[Index(method)]->Observe(seconds);
}

void Metrics::AddInFlightRequests(int change) {
  families_->in_flight_requests->Increment(change);
}

void Metrics::ObserveQueue(double seconds) {
  families_->queue_duration->Observe(seconds);
}

void Metrics::ObserveStage(std::string_view stage, double seconds) {
  const auto found = families_->stage_duration.find(stage);
  if (found != families_->stage_duration.end()) {
    found->second->Observe(seconds);
  }
}

void Metrics::CountTensorBytes(Plane plane, Direction direction,
                               int64_t bytes) {
  families_->tensor_bytes[Index(plane)][Index(direction)]->Increment(
      static_cast<double>(bytes));
}

void Metrics::CountCommunicationBytes(CommunicationPrecision precision,
                                      int64_t bytes) {
  families_->communication_bytes[Index(precision)]->Increment(
      static_cast<double>(bytes));
}

void Metrics::CountRetry() { families_->retries->Increment(); }

void Metrics::CountGroupFormation(bool formed) {
  families_->group_formations[formed ? 1 : 0]->Increment();
}

void Metrics::CountGroupFailure(GroupFailureReason reason) {
  families_->group_failures[Index(reason)]->Increment();
}

void Metrics::CountLeaseExpired() { families_->leases_expired->Increment(); }

void Metrics::SetQueuedRequests(int64_t requests) {
  families_->queued_requests->Set(static_cast<double>(requests));
}

void Metrics::SetInFlightBytes(int64_t bytes) {
  families_->in_flight_bytes->Set(static_cast<double>(bytes));
}

void Metrics::SetGroups(const std::array<int, 4>& groups_by_state) {
  for (size_t state = 0; state < kNumStates; ++state) {
    families_->groups[state]->Set(groups_by_state[state]);
  }
}

void Metrics::SetWorkers(const GroupManager::WorkerCounts& workers) {
  families_->joined_workers->Set(workers.joined);
  families_->forming_workers->Set(workers.forming);
  families_->grouped_workers->Set(workers.in_group);
}

void Metrics::SetLeases(size_t leases) {
  families_->leases->Set(static_cast<double>(leases));
}

void Metrics::SetRegions(MemoryKind kind, size_t regions, double bytes) {
  families_->regions[Index(kind)]->Set(static_cast<double>(regions));
  families_->region_bytes[Index(kind)]->Set(bytes);
}

std::string Metrics::Serialize() const {
  return prometheus::TextSerializer().Serialize(families_->registry.Collect());
}

CallRecord::CallRecord(Metrics* metrics, Method method)
    : metrics_(metrics),
      method_(method),
      arrival_nanoseconds_(SteadyNanoseconds()) {
  metrics_->AddInFlightRequests(1);
}

void CallRecord::End(grpc::StatusCode code) {
  if (metrics_ == nullptr) return;
  metrics_->AddInFlightRequests(-1);
  metrics_->CountRequest(method_, code, SecondsSinceArrival());
  metrics_ = nullptr;
}

double CallRecord::SecondsSinceArrival() const {
  return static_cast<double>(SteadyNanoseconds() - arrival_nanoseconds_) * 1e-9;
}

}  // namespace ithaca::server
