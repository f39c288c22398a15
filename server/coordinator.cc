#include "server/coordinator.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <spdlog/common.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/version.h"
#include "server/coordinator_flags.h"
#include "server/group_manager.h"
#include "server/grpc_arguments.h"
#include "server/logging.h"
#include "server/memory_region.h"
#include "server/worker_process.h"

namespace ithaca::server {

namespace {

// The service's name in grpc.health.v1; "" stands for the whole server.
constexpr char kServiceName[] = "ithaca.v1.AttentionService";

// What streams, and responses that are on their way, have at the very end.
constexpr absl::Duration kFarewell = absl::Seconds(1);

// Well within what a container is given between SIGTERM and SIGKILL.
constexpr absl::Duration kWorkerStopTimeout = absl::Seconds(2);

GroupManagerOptions ManagerOptions(
    const CoordinatorFlags& flags, const BearerToken& token, Metrics* metrics,
    std::unique_ptr<LocalWorkerSupervisor>* supervisor) {
  GroupManagerOptions options;
  options.token = token;
  options.group_size = flags.group_size;
  options.version = std::string(Version());
  options.formation_timeout = flags.formation_timeout;
  options.collective_timeout = flags.collective_timeout;
  options.kill_local_slot = [supervisor](int slot) {
    if (*supervisor != nullptr) (*supervisor)->KillSlot(slot);
  };
  options.on_formation_failed = [metrics](std::string_view group,
                                          uint64_t generation,
                                          std::string_view message) {
    metrics->CountGroupFormation(false);
    Log(spdlog::level::warn, "group did not form",
        {{"group", group},
         {"generation", static_cast<int64_t>(generation)},
         {"error", message}});
  };
  return options;
}

// Where a worker on this host reaches what listens on `listen`.
std::string LocalAddress(const std::string& listen, int port) {
  std::string host = listen.substr(0, listen.rfind(':'));
  if (host.empty() || host == "0.0.0.0") host = "127.0.0.1";
  if (host == "[::]") host = "[::1]";
  return absl::StrCat(host, ":", port);
}

bool CudaMemory(const CoordinatorFlags& flags) {
  return flags.allow_cuda_memory && flags.device == "cuda";
}

RegionTable::Limits RegionLimits() {
  RegionTable::Limits limits;
  // Connections need descriptors too.
  rlimit descriptors = {};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) {
    limits.regions = std::min<size_t>(limits.regions, descriptors.rlim_cur / 2);
  }
  return limits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(
    const CoordinatorFlags& flags,
    std::function<void(const std::string& why)> on_unusable) {
  if (flags.local_workers > 0) {
    if (auto binary = FindWorkerBinary(flags.worker_binary); !binary.ok()) {
      return binary.status();
    }
  }
  BearerToken token;
  if (!flags.auth_token_file.empty()) {
    std::ifstream file(flags.auth_token_file);
    auto read = BearerToken::Read(file, flags.auth_token_file);
    if (!read.ok()) return read.status();
    token = *std::move(read);
  }
  std::unique_ptr<Coordinator> coordinator(new Coordinator(flags, token));
  const auto port = coordinator->StartServing(flags);
  if (!port.ok()) return port.status();
  if (auto status =
          coordinator->StartWorkers(flags, *port, std::move(on_unusable));
      !status.ok()) {
    return status;
  }
  return coordinator;
}

Coordinator::Coordinator(const CoordinatorFlags& flags,
                         const BearerToken& token)
    : metrics_(std::string(Version()), flags.device),
      queue_(flags.max_queued_requests),
      budget_(flags.max_inflight_bytes),
      groups_(ManagerOptions(flags, token, &metrics_, &supervisor_)),
      attacher_(&groups_, {}),
      regions_(RegionLimits(),
               [this](const internal::v1::Region& memory,
                      std::function<void()> done) {
                 attacher_.Detach(memory, std::move(done));
               }),
      scheduler_(&groups_, &queue_, &metrics_,
                 [this, &flags] {
                   GroupScheduler::Options options;
                   options.calls_in_flight = flags.calls_in_flight;
                   options.collective_timeout = flags.collective_timeout;
                   options.on_ready_changed = [this](bool) { PublishHealth(); };
                   return options;
                 }()),
      service_(
          &groups_, &scheduler_, &budget_, &metrics_,
          {std::string(Version()), flags.device, flags.max_message_bytes,
           flags.max_request_bytes, token,
           flags.allow_shared_memory || CudaMemory(flags) ? &regions_ : nullptr,
           flags.allow_shared_memory, CudaMemory(flags),
           flags.stream_idle_timeout, flags.collective_timeout}),
      memory_(&regions_, &attacher_, &metrics_,
              {flags.allow_shared_memory, CudaMemory(flags), token}) {
  groups_.SetObserver(&scheduler_);
}

Coordinator::~Coordinator() { Shutdown(absl::Now()); }

absl::StatusOr<int> Coordinator::StartServing(const CoordinatorFlags& flags) {
  auto http = HttpEndpoint::Start(flags.metrics_listen,
                                  {[this] { return scheduler_.Ready(); },
                                   [this] { return ScrapeMetrics(); }});
  if (!http.ok()) return http.status();
  http_ = *std::move(http);

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetServerArguments(flags.max_message_bytes, &builder);
  BoundMessageMemory(flags.max_inflight_bytes, flags.max_message_bytes,
                     &builder);
  health_gate_.AddTo(&builder);
  int port = 0;
  builder.AddListeningPort(flags.listen, grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(&service_);
  builder.RegisterService(&memory_);
  groups_.AddTo(&builder);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", flags.listen,
                     " for calls: it is in use, or no address of this host"));
  }
  {
    const absl::MutexLock lock(&health_mutex_);
    server_ = std::move(server);
  }
  PublishHealth();
  health_gate_.Open();
  Log(spdlog::level::info, "listening",
      {{"version", Version()},
       {"address", flags.listen},
       {"port", int64_t{port}},
       {"metrics_port", int64_t{http_->port()}},
       {"group_size", int64_t{flags.group_size}},
       {"local_workers", int64_t{flags.local_workers}}});
  return port;
}

absl::Status Coordinator::StartWorkers(
    const CoordinatorFlags& flags, int port,
    std::function<void(const std::string& why)> on_unusable) {
  if (flags.local_workers == 0) return absl::OkStatus();
  LocalWorkerOptions options;
  options.workers = flags.local_workers;
  options.device = flags.device;
  options.coordinator_address = LocalAddress(flags.listen, port);
  options.worker_binary = flags.worker_binary;
  options.worker_arguments.push_back(flags.log_format == LogFormat::kJson
                                         ? "--log-format=json"
                                         : "--log-format=text");
  const auto level = spdlog::level::to_string_view(flags.log_level);
  options.worker_arguments.push_back(absl::StrCat(
      "--log-level=", absl::string_view(level.data(), level.size())));
  if (!flags.auth_token_file.empty()) {
    options.worker_arguments.push_back(
        absl::StrCat("--auth-token-file=", flags.auth_token_file));
  }
  options.worker_arguments.insert(options.worker_arguments.end(),
                                  flags.worker_flags.begin(),
                                  flags.worker_flags.end());
  options.stop_timeout = kWorkerStopTimeout;
  options.on_unusable = std::move(on_unusable);
  supervisor_ = std::make_unique<LocalWorkerSupervisor>(std::move(options));
  return supervisor_->Start();
}

void Coordinator::PublishHealth() {
  const absl::MutexLock lock(&health_mutex_);
  if (server_ == nullptr) return;  // told again once it listens
  // Asked for under the lock, so that the last word published is the true one.
  const bool ready = scheduler_.Ready();
  grpc::HealthCheckServiceInterface* const health =
      server_->GetHealthCheckService();
  health->SetServingStatus("", ready);
  health->SetServingStatus(kServiceName, ready);
}

std::string Coordinator::ScrapeMetrics() {
  std::array<int, 4> groups_by_state = {};
  for (const Group& group : groups_.Groups()) {
    ++groups_by_state[static_cast<size_t>(group.state)];
  }
  metrics_.SetGroups(groups_by_state);
  metrics_.SetWorkers(groups_.Workers());
  metrics_.SetQueuedRequests(queue_.size());
  metrics_.SetInFlightBytes(budget_.reserved());
  const RegionTable::Totals memory = regions_.totals();
  metrics_.SetLeases(memory.leases);
  for (const MemoryKind kind : {MemoryKind::kShared, MemoryKind::kCuda}) {
    const auto index = static_cast<size_t>(kind);
    metrics_.SetRegions(kind, memory.regions[index], memory.bytes[index]);
  }
  return metrics_.Serialize();
}

void Coordinator::Shutdown(absl::Time deadline) {
  if (stopped_) return;
  stopped_ = true;
  scheduler_.Drain();
  groups_.Drain();
  if (!service_.AwaitIdle(deadline)) {
    Log(spdlog::level::warn, "calls still ran at the end of the drain: cut");
  }
  // While the workers are there to be told.
  memory_.EndLeases();
  regions_.AwaitEmpty(absl::Now() + kFarewell);
  // Before the workers are told to go, so that none comes back meanwhile.
  if (supervisor_ != nullptr) supervisor_->StopRestarting();
  groups_.Stop();
  scheduler_.Stop();
  if (supervisor_ != nullptr) supervisor_->Stop();
  grpc::Server* server = nullptr;
  {
    const absl::MutexLock lock(&health_mutex_);
    server = server_.get();
  }
  if (server != nullptr) {
    server->Shutdown(absl::ToChronoTime(absl::Now() + kFarewell));
  }
  attacher_.Stop();
  // No call is left that could hold a region.
  regions_.AwaitEmpty(absl::InfiniteFuture());
  http_.reset();
}

}  // namespace ithaca::server
