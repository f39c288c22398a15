#ifndef ITHACA_SERVER_METRICS_H_
#define ITHACA_SERVER_METRICS_H_

#include <grpcpp/support/status.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/attention_call.h"
#include "server/group_manager.h"
#include "server/memory_region.h"

// Every metric the coordinator has, built in one place. Seconds and bytes;
// label values come from closed sets, never from what a client sent, and every
// series is there at 0 from the start. Thread-safe.

namespace ithaca::server {

enum class Method : uint8_t {
  kAttention,
  kStreamAttention,
  kGetServerInfo,
  kKeepLease,
  kRegisterSharedMemory,
  kRegisterCudaMemory,
  kUnregisterMemory,
  kListMemory,
};
std::string_view Name(Method method);  // "Attention"

enum class Plane : uint8_t { kUnary, kStream, kSharedMemory, kCudaMemory };
inline constexpr size_t kNumPlanes = 4;
std::string_view Name(Plane plane);  // "shared_memory"

enum class Direction : uint8_t { kIn, kOut };

// The stages of ExecutionReport.stage_seconds, in a call's order.
inline constexpr std::array<std::string_view, 9> kStageNames = {
    "scatter",   "pack",        "all_to_all",        "unpack",
    "attention", "output_pack", "output_all_to_all", "output_unpack",
    "gather"};

class Metrics {
 public:
  Metrics(const std::string& version, const std::string& device);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Once a call, whatever its end.
  void CountRequest(Method method, grpc::StatusCode code, double seconds);
  void AddInFlightRequests(int change);
  // Once a call that ran.
  void ObserveQueue(double seconds);
  // A name that is not among kStageNames is dropped.
  void ObserveStage(std::string_view stage, double seconds);
  void CountTensorBytes(Plane plane, Direction direction, int64_t bytes);
  void CountCommunicationBytes(CommunicationPrecision precision, int64_t bytes);
  void CountRetry();

  void CountGroupFormation(bool formed);
  void CountGroupFailure(GroupFailureReason reason);
  void CountLeaseExpired();

  // Gauges that are read off their owners when a scrape asks for them.
  void SetQueuedRequests(int64_t requests);
  void SetInFlightBytes(int64_t bytes);
  // By GroupState's order.
  void SetGroups(const std::array<int, 4>& groups_by_state);
  void SetWorkers(const GroupManager::WorkerCounts& workers);
  void SetLeases(size_t leases);
  void SetRegions(MemoryKind kind, size_t regions, double bytes);

  // All families in Prometheus' text format.
  std::string Serialize() const;

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

// One call in the metrics, from its arrival to its end: in flight for as long,
// and counted exactly once. Not thread-safe.
class CallRecord {
 public:
  CallRecord(Metrics* metrics, Method method);  // metrics outlive this
  // A call that nobody ended was cancelled.
  ~CallRecord() { End(grpc::StatusCode::CANCELLED); }
  CallRecord(const CallRecord&) = delete;
  CallRecord& operator=(const CallRecord&) = delete;

  // Only the first has an effect.
  void End(grpc::StatusCode code);
  double SecondsSinceArrival() const;

 private:
  Metrics* metrics_;  // nullptr once ended
  const Method method_;
  const int64_t arrival_nanoseconds_;  // of the steady clock
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_METRICS_H_
