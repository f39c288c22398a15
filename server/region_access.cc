#include "server/region_access.h"

#include <grpcpp/server_context.h>

#include <string>

#include "absl/strings/match.h"

namespace ithaca::server {

std::string ConnectionOf(const std::string& peer) {
  return absl::StartsWith(peer, "ipv4:") || absl::StartsWith(peer, "ipv6:")
             ? peer
             : "";
}

RegionAccess AccessOf(const grpc::CallbackServerContext& context) {
  RegionAccess access;
  access.peer = ConnectionOf(context.peer());
  const auto& metadata = context.client_metadata();
  if (const auto found = metadata.find(kLeaseKey); found != metadata.end()) {
    access.lease.assign(found->second.data(), found->second.size());
  }
  return access;
}

}  // namespace ithaca::server
