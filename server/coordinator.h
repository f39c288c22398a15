#ifndef ITHACA_SERVER_COORDINATOR_H_
#define ITHACA_SERVER_COORDINATOR_H_

#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/bearer_token.h"
#include "server/admission_queue.h"
#include "server/attention_service.h"
#include "server/byte_budget.h"
#include "server/coordinator_flags.h"
#include "server/group_manager_impl.h"
#include "server/group_scheduler.h"
#include "server/health_gate.h"
#include "server/http_endpoint.h"
#include "server/local_worker_supervisor.h"
#include "server/memory_service.h"
#include "server/metrics.h"
#include "server/region_attacher.h"
#include "server/region_table.h"

namespace ithaca::server {

// The whole server, put together: listens, forms groups, answers calls.
class Coordinator {
 public:
  // Returns once it listens; it is ready when a group has proven itself.
  // Errors: kUnavailable or kInvalidArgument (an address, which is named),
  // kNotFound (no worker binary or token file), kInternal (a worker cannot be
  // started).
  // on_unusable: see LocalWorkerOptions; it may be called before this returns.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(
      const CoordinatorFlags& flags,
      std::function<void(const std::string& why)> on_unusable);

  // As Shutdown, at once.
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // Not ready from here on, takes no call, waits for those that run, and ends
  // what is left of them at `deadline`, and then the workers and itself.
  // Idempotent. Not thread-safe.
  void Shutdown(absl::Time deadline);

 private:
  Coordinator(const CoordinatorFlags& flags, const BearerToken& token);
  // The port of calls.
  absl::StatusOr<int> StartServing(const CoordinatorFlags& flags);
  absl::Status StartWorkers(
      const CoordinatorFlags& flags, int port,
      std::function<void(const std::string& why)> on_unusable);
  void PublishHealth();
  std::string ScrapeMetrics();

  Metrics metrics_;
  AdmissionQueue queue_;
  ByteBudget budget_;
  std::unique_ptr<LocalWorkerSupervisor> supervisor_;  // nullptr: none local
  GroupManagerImpl groups_;
  RegionAttacher attacher_;
  RegionTable regions_;
  GroupScheduler scheduler_;
  AttentionService service_;
  MemoryService memory_;
  HealthGate health_gate_;
  absl::Mutex health_mutex_;
  std::unique_ptr<grpc::Server> server_ ABSL_GUARDED_BY(health_mutex_);
  std::unique_ptr<HttpEndpoint> http_;
  bool stopped_ = false;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_COORDINATOR_H_
