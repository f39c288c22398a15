#ifndef ITHACA_SERVER_GROUP_MANAGER_IMPL_H_
#define ITHACA_SERVER_GROUP_MANAGER_IMPL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/group_manager.h"
#include "server/group_manager_options.h"

namespace grpc {
class ServerBuilder;
class Service;
}  // namespace grpc

namespace ithaca::server {

// GroupManager over ithaca.internal.v1.WorkerRegistry: workers hold a
// Membership stream open to it, and leave addresses for each other in its
// rendezvous store. No thread per worker: gRPC's callbacks, and two threads of
// its own, one that keeps the deadlines and one that calls the observer.
//
// Order of use: construct, SetObserver, AddTo(builder), BuildAndStart, ...,
// Stop, server.Shutdown, destroy the server, destroy this.
class GroupManagerImpl : public GroupManager {
 public:
  explicit GroupManagerImpl(GroupManagerOptions options);
  ~GroupManagerImpl() override;  // Stop()s
  GroupManagerImpl(const GroupManagerImpl&) = delete;
  GroupManagerImpl& operator=(const GroupManagerImpl&) = delete;

  // The service that workers dial. Owned by this.
  grpc::Service* membership_service();

  // Registers membership_service() and lets the server take the keepalive
  // pings by which workers find a vanished coordinator.
  void AddTo(grpc::ServerBuilder* builder);

  // Forms no more groups and calls those that are formed `draining`.
  void Drain();

  // Tells local workers to exit and ends every membership stream with
  // UNAVAILABLE; no observer call is made after it returns. Idempotent.
  // Without it a grpc::Server::Shutdown would wait for the streams for ever.
  void Stop();

  void SetObserver(GroupObserver* observer) override;
  void MarkReady(std::string_view name, uint64_t generation) override;
  void ReportFailure(std::string_view name, uint64_t generation,
                     GroupFailureReason reason,
                     std::string_view message) override;
  void Release(std::string_view name, uint64_t generation) override;
  std::vector<Group> Groups() const override;
  std::vector<GroupMember> JoinedWorkers() const override;
  WorkerCounts Workers() const override;

 private:
  class Core;
  const std::unique_ptr<Core> core_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_MANAGER_IMPL_H_
