#ifndef ITHACA_SERVER_REGION_ACCESS_H_
#define ITHACA_SERVER_REGION_ACCESS_H_

#include <grpcpp/server_context.h>

#include <string>

#include "server/memory_region.h"

namespace ithaca::server {

// The metadata key by which a call names the lease whose regions it uses.
inline constexpr char kLeaseKey[] = "ithaca-lease";

// What tells one connection from all others, as gRPC's peer() puts it: an IPv4
// or IPv6 address with its port. Empty for anything else: all clients on a Unix
// socket look alike.
std::string ConnectionOf(const std::string& peer);

RegionAccess AccessOf(const grpc::CallbackServerContext& context);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_REGION_ACCESS_H_
