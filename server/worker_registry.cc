#include "server/worker_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/network_namespace.h"

namespace ithaca::server {
namespace {

bool IsLoopback(std::string_view host) {
  return host.substr(0, 4) == "127." || host == "::1" || host == "[::1]";
}

absl::Status CheckFields(const internal::v1::Join& join,
                         std::string_view peer_host,
                         const std::string& address) {
  if (join.worker().empty()) {
    return absl::InvalidArgumentError("join.worker: expected a name, got none");
  }
  if (join.host().empty()) {
    return absl::InvalidArgumentError("join.host: expected a name, got none");
  }
  if (join.device().empty()) {
    return absl::InvalidArgumentError(
        "join.device: expected cpu or cuda:N, got none");
  }
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("join.address: expected HOST:PORT or :PORT, got '",
                     join.address(), "'"));
  }
  if (!join.local_socket().empty() &&
      !absl::StartsWith(join.local_socket(), "unix-abstract:")) {
    return absl::InvalidArgumentError(
        absl::StrCat("join.local_socket: expected unix-abstract:NAME, got '",
                     join.local_socket(), "'"));
  }
  if (join.has_local_slot() && join.local_slot() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "join.local_slot: expected 0 or more, got ", join.local_slot()));
  }
  // A slot's silence ends the process in it: nobody else may speak for it.
  if (join.has_local_slot() && !IsLoopback(peer_host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("join.local_slot: expected none from another host, got ",
                     join.local_slot(), " from ", std::string(peer_host)));
  }
  return absl::OkStatus();
}

}  // namespace

WorkerRegistry::WorkerRegistry(std::string version)
    : version_(std::move(version)), network_namespace_(NetworkNamespace()) {}

absl::StatusOr<Worker*> WorkerRegistry::Admit(const internal::v1::Join& join,
                                              std::string_view peer_host,
                                              absl::Time now) {
  if (join.version() != version_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker ", join.worker(), " is of version '",
                     join.version(), "', the coordinator of version '",
                     version_, "': both must be the same"));
  }
  const std::string address = ResolveAddress(join.address(), peer_host);
  if (absl::Status fields = CheckFields(join, peer_host, address);
      !fields.ok()) {
    return fields;
  }
  if (!join.device_uuid().empty()) {
    for (const auto& [id, other] : workers_) {
      if (other.device_uuid != join.device_uuid()) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "two workers on one GPU: ", join.worker(), " (", join.device(),
          ") has ", join.device_uuid(), ", which ", other.member.worker, " (",
          other.member.device, ") joined with"));
    }
  }

  Worker worker;
  worker.id = next_id_++;
  worker.member.worker = join.worker();
  worker.member.address = address;
  if (!network_namespace_.empty() &&
      join.network_namespace() == network_namespace_) {
    worker.member.local_socket = join.local_socket();
  }
  worker.member.device = join.device();
  worker.member.kernels.assign(join.kernels().begin(), join.kernels().end());
  worker.host = join.host();
  worker.device_uuid = join.device_uuid();
  if (join.has_local_slot()) worker.local_slot = join.local_slot();
  worker.joined_at = now;
  worker.last_heard = now;
  return &workers_.emplace(worker.id, std::move(worker)).first->second;
}

Worker* WorkerRegistry::FindPredecessor(const internal::v1::Join& join,
                                        std::string_view peer_host) {
  const std::string address = ResolveAddress(join.address(), peer_host);
  for (auto& [id, worker] : workers_) {
    if (worker.member.worker == join.worker() &&
        worker.member.address == address) {
      return &worker;
    }
  }
  return nullptr;
}

Worker* WorkerRegistry::Find(WorkerId id) {
  auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

void WorkerRegistry::Remove(WorkerId id) { workers_.erase(id); }

void WorkerRegistry::ForgiveSilence(absl::Time now) {
  for (auto& [id, worker] : workers_) worker.last_heard = now;
}

std::vector<WorkerId> WorkerRegistry::SilentSince(absl::Time limit) const {
  std::vector<WorkerId> silent;
  for (const auto& [id, worker] : workers_) {
    if (worker.last_heard <= limit) silent.push_back(id);
  }
  return silent;
}

absl::Time WorkerRegistry::LongestSilent() const {
  absl::Time oldest = absl::InfiniteFuture();
  for (const auto& [id, worker] : workers_) {
    oldest = std::min(oldest, worker.last_heard);
  }
  return oldest;
}

std::string ResolveAddress(std::string_view address,
                           std::string_view peer_host) {
  if (address.substr(0, 1) != ":") return std::string(address);
  return std::string(peer_host) + std::string(address);
}

std::string PeerHost(std::string_view peer) {
  std::string text(peer);
  if (text.rfind("ipv4:", 0) != 0 && text.rfind("ipv6:", 0) != 0) return "";
  text = absl::StrReplaceAll(
      text.substr(5),
      {{"%5B", "["}, {"%5b", "["}, {"%5D", "]"}, {"%5d", "]"}, {"%25", "%"}});
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return "";
  return text.substr(0, colon);
}

}  // namespace ithaca::server
