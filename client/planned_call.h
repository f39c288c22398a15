#ifndef ITHACA_CLIENT_PLANNED_CALL_H_
#define ITHACA_CLIENT_PLANNED_CALL_H_

#include <grpcpp/generic/generic_stub.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "client/attention_call.h"
#include "client/attention_client.h"
#include "client/memory_lease.h"
#include "client/region_pool.h"
#include "client/server_planes.h"

namespace ithaca::client {

// What the calls of one client share. Thread-safe.
struct ClientCore {
  ClientOptions options;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs;
  std::shared_ptr<ServerPlanes> server;
  std::shared_ptr<MemoryLease> lease;
  std::shared_ptr<RegionPool> pool;
  std::atomic<size_t> next_stub = 0;
  std::atomic<bool> told = false;

  // The connection whose turn it is.
  grpc::GenericStub* NextStub();
  // Tells on_fallback the first note.
  void Tell(const std::string& note);
};

// A call as Client::AttentionAsync promises it: registers the regions that it
// brings, chooses the plane, copies into and out of shared memory, falls back,
// and starts over once where the server does not know the lease.
std::shared_ptr<PendingCall> StartPlannedCall(
    const std::shared_ptr<ClientCore>& core,
    const AttentionArguments& arguments, AttentionCallback done);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_PLANNED_CALL_H_
