#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/bearer_token.h"
#include "core/network_namespace.h"
#include "core/version.h"
#include "worker/call_conversion.h"
#include "worker/local_address.h"
#include "worker/logging.h"
#include "worker/membership.h"
#include "worker/metrics_endpoint.h"
#include "worker/rank_device.h"
#include "worker/rank_metrics.h"
#include "worker/rank_server.h"
#include "worker/rank_service.h"
#include "worker/region_table.h"
#include "worker/termination.h"
#include "worker/warm_shapes.h"
#include "worker/worker_flags.h"

namespace ithaca {
namespace {

// What responses have to leave on their way out after the last call.
constexpr absl::Duration kSendTimeout = absl::Seconds(5);

std::string HostName() {
  char name[256] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "localhost";
  return name;
}

RankDeviceOptions DeviceOptions(const WorkerFlags& flags) {
  RankDeviceOptions options;
  options.name = flags.device;
  options.num_threads = flags.threads;
  options.nccl_host_id = flags.nccl_host_id;
  return options;
}

absl::StatusOr<std::unique_ptr<RankDevice>> OpenDevice(
    const WorkerFlags& flags) {
  RankDeviceOptions options = DeviceOptions(flags);
  options.address.interface = flags.peer_interface;
  options.address.hostname = flags.peer_address;
  if (flags.peer_address.empty() && flags.peer_interface.empty()) {
    absl::StatusOr<std::string> own = LocalAddressTowards(flags.coordinator);
    if (!own.ok()) return own.status();
    options.address.hostname = *std::move(own);
  }
  return OpenRankDevice(options);
}

// What the device is, before anyone asks for work on it.
absl::Status Describe(const WorkerFlags& flags, internal::v1::Join* join) {
  absl::StatusOr<std::unique_ptr<RankDevice>> device =
      OpenRankDevice(DeviceOptions(flags));
  if (!device.ok()) return device.status();
  join->set_version(std::string(Version()));
  join->set_host(HostName());
  join->set_worker(absl::StrCat(HostName(), "/", getpid()));
  join->set_device(flags.device);
  // Workers that NCCL takes for different hosts' may share a GPU.
  join->set_device_uuid(
      flags.nccl_host_id.empty()
          ? (*device)->uuid()
          : absl::StrCat((*device)->uuid(), "/", flags.nccl_host_id));
  for (AttentionKernelKind kernel : (*device)->kernels()->Available()) {
    join->add_kernels(ToProto(kernel));
  }
  if (flags.local_slot.has_value()) join->set_local_slot(*flags.local_slot);
  return absl::OkStatus();
}

// What the coordinator is to dial: see Join.address.
std::string AdvertisedAddress(const std::string& listen, int port) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  const bool everywhere =
      host.empty() || host == "0.0.0.0" || host == "[::]" || host == "*";
  return absl::StrCat(everywhere ? "" : host, ":", port);
}

// Nothing is destroyed: a thread may still be in a call, and gRPC 1.51 may
// abort a process that destroys its last callback server and channel.
[[noreturn]] void Exit(int code) {
  std::fflush(nullptr);
  _exit(code);
}

// How a start that failed ends the process. 2, as a wrong flag does, tells
// whoever started it that the same flags will not do better on this host.
int ExitCode(const absl::Status& status) {
  const bool may_pass =
      absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
  return may_pass ? 1 : 2;
}

// Runs until asked to end, and ends the process; returns why it cannot start.
absl::Status Work(const WorkerFlags& flags, Termination* termination) {
  if (flags.exit_with_parent.has_value()) {
    absl::Status tied = ExitWithParent(*flags.exit_with_parent);
    if (!tied.ok()) return tied;
  }
  BearerToken token;
  if (!flags.auth_token_file.empty()) {
    std::ifstream file(flags.auth_token_file);
    absl::StatusOr<BearerToken> read =
        BearerToken::Read(file, flags.auth_token_file);
    if (!read.ok()) return read.status();
    token = *std::move(read);
  }
  MembershipOptions options;
  options.authorization = token.Authorization();
  if (absl::Status found = Describe(flags, &options.join); !found.ok()) {
    return found;
  }
  if (!flags.warm_shapes.empty()) {
    absl::StatusOr<std::vector<WarmShape>> shapes =
        ReadWarmShapes(flags.warm_shapes);
    if (!shapes.ok()) return shapes.status();
    options.session.warm_shapes = *std::move(shapes);
  }
  StartLogging(flags.log_format, flags.log_level, options.join.worker());

  RankMetrics metrics(std::string(Version()), flags.device);
  std::unique_ptr<MetricsEndpoint> endpoint;
  if (!flags.metrics_listen.empty()) {
    absl::StatusOr<std::unique_ptr<MetricsEndpoint>> started =
        MetricsEndpoint::Start(flags.metrics_listen,
                               [&metrics] { return metrics.Text(); });
    if (!started.ok()) return started.status();
    endpoint = *std::move(started);
    spdlog::info("metrics on port {}", endpoint->port());
  }

  const RankDeviceOptions device = DeviceOptions(flags);
  const std::shared_ptr<PinnedMemory> pinned = MakePinnedMemory(device);
  HostBufferPool buffers(pinned), staging(pinned);
  const std::unique_ptr<RegionOpener> opener = MakeRegionOpener(device);
  RegionTable regions(opener.get());
  RankService service(
      &staging, &regions,
      [&metrics](const RankReport& report) { metrics.Observe(report); },
      std::move(token));
  absl::StatusOr<RankServer> server = StartRankServer(flags.listen, &service);
  if (!server.ok()) return server.status();
  options.join.set_address(AdvertisedAddress(flags.listen, server->port));
  options.join.set_local_socket(server->local_socket);
  options.join.set_network_namespace(NetworkNamespace());
  options.session.open_device = [&flags] { return OpenDevice(flags); };
  options.session.buffers = &buffers;
  options.session.regions = &regions;
  options.session.vote_delay = flags.injected_vote_delay;

  MembershipEvents events;
  events.on_session = [&service](std::shared_ptr<GroupSession> session) {
    service.SetSession(std::move(session));
  };
  events.on_coordinator_lost = [&regions] { regions.DropAll(); };
  events.on_refused = [termination](const absl::Status& why) {
    termination->Request(
        1, absl::StrCat("refused by the coordinator: ", why.message()));
  };
  events.on_shutdown = [termination](const std::string& reason) {
    termination->Request(0, reason);
  };
  Membership membership(MakeCoordinatorChannel(flags.coordinator),
                        std::move(options), std::move(events));
  spdlog::info("ithaca-worker {} on {}, calls on port {}, coordinator {}",
               Version(), flags.device, server->port, flags.coordinator);
  membership.Start();

  const Termination::Reason reason = termination->Await();
  if (reason.exit_code != 0) {
    std::fprintf(stderr, "ithaca-worker: %s\n", reason.text.c_str());
    membership.Stop();
    Exit(reason.exit_code);
  }
  spdlog::info("ending: {}", reason.text);
  const absl::Time deadline = absl::Now() + flags.drain_timeout;
  membership.Leave(deadline);
  const bool drained = service.AwaitIdle(deadline - absl::Now());
  if (!drained) {
    spdlog::warn("a call still runs after {}: it is cut",
                 absl::FormatDuration(flags.drain_timeout));
  }
  const bool ended = membership.Stop();
  server->server->Shutdown(absl::ToChronoTime(absl::Now() + kSendTimeout));
  Exit(drained && ended ? 0 : 1);
}

int Main(int argc, char** argv) {
  // Lives as long as the process: a thread waits for signals to the end.
  static Termination& termination = *new Termination;
  TerminateOnSignals(&termination);
  std::variant<WorkerFlags, WorkerExit> parsed = ParseWorkerFlags(argc, argv);
  if (const auto* exit = std::get_if<WorkerExit>(&parsed)) {
    std::fputs(exit->text.c_str(), exit->code == 0 ? stdout : stderr);
    return exit->code;
  }
  const absl::Status failure =
      Work(std::get<WorkerFlags>(parsed), &termination);
  std::fprintf(stderr, "ithaca-worker: %s\n",
               std::string(failure.message()).c_str());
  Exit(ExitCode(failure));
}

}  // namespace
}  // namespace ithaca

int main(int argc, char** argv) { return ithaca::Main(argc, argv); }
