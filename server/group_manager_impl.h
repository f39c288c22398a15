#ifndef ITHACA_SERVER_GROUP_MANAGER_IMPL_H_
#define ITHACA_SERVER_GROUP_MANAGER_IMPL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "server/group_manager.h"

namespace grpc {
class ServerBuilder;
class Service;
}  // namespace grpc

namespace ithaca::server {

struct GroupManagerOptions {
  int group_size = 1;  // ranks of a group, >= 1
  // A worker of any other is refused.
  std::string version;
  // How often a worker is asked to say that it lives, and the silence after
  // which it is taken for dead.
  absl::Duration heartbeat_interval = absl::Milliseconds(500);
  absl::Duration heartbeat_limit = absl::Milliseconds(1500);
  // Members have this long to connect to each other; then the attempt is
  // dropped and made anew, with a fresh rendezvous id and generation.
  absl::Duration formation_timeout = absl::Seconds(15);
  // What ranks wait for each other in one exchange.
  absl::Duration collective_timeout = absl::Seconds(30);
  // How long a worker that just joined is kept for others of its host to
  // arrive before it may be put in a group that spans hosts.
  absl::Duration same_host_wait = absl::Seconds(2);
  // The first group's generation; later ones count up. 0: milliseconds of the
  // wall clock, so that generations rise over coordinator restarts too.
  uint64_t first_generation = 0;
  // Ends the process of a local worker that fell silent; may be empty. Must
  // not block.
  std::function<void(int slot)> kill_local_slot;
  // Told of each attempt to form a group that failed (groups that did form
  // are the observer's); may be empty. As GroupObserver's calls: in order
  // with them, one at a time.
  std::function<void(std::string_view group, uint64_t generation,
                     std::string_view message)>
      on_formation_failed;
};

// GroupManager over ithaca.internal.v1.WorkerRegistry: workers hold a
// Membership stream open to it, and leave addresses for each other in its
// rendezvous store. No thread per worker: gRPC's callbacks, and one thread of
// its own that keeps the deadlines and calls the observer.
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
  std::vector<Group> Groups() const override;
  WorkerCounts Workers() const override;

 private:
  class Core;
  const std::shared_ptr<Core> core_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_MANAGER_IMPL_H_
