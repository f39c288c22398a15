#ifndef ITHACA_SERVER_WORKER_REGISTRY_H_
#define ITHACA_SERVER_WORKER_REGISTRY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/group_former.h"
#include "server/group_manager.h"

// The workers that have joined: who may, what they said of themselves, and
// when each was last heard of. Not thread-safe: its owner locks.

namespace ithaca::server {

struct Worker {
  WorkerId id = 0;
  GroupMember member;
  std::string host;
  std::string device_uuid;  // empty on CPU
  std::optional<int> local_slot;
  absl::Time joined_at;
  absl::Time last_heard;
  int failed_formations = 0;
  // The group it forms or is in; empty: none.
  std::string group;
  // Its group ended by silence, and it has not been heard of since: it may be
  // the one that is frozen, so no new group takes it yet.
  bool suspected = false;
  // It is to end: no group takes it any more.
  bool leaving = false;
  // Generations that it was told to leave and has not yet, and until when.
  std::map<uint64_t, absl::Time> to_leave;
};

class WorkerRegistry {
 public:
  explicit WorkerRegistry(std::string version);

  // A worker joins. peer_host is where the coordinator sees it, for an address
  // without a host. Errors: kFailedPrecondition (another version; a GPU that
  // a joined worker has; both are named), kInvalidArgument (a field missing or
  // malformed).
  absl::StatusOr<Worker*> Admit(const internal::v1::Join& join,
                                std::string_view peer_host, absl::Time now);

  // The joined worker of this name at this address, as which the process
  // behind `join` was known before it lost its stream; nullptr: none.
  Worker* FindPredecessor(const internal::v1::Join& join,
                          std::string_view peer_host);

  Worker* Find(WorkerId id);  // nullptr: none
  void Remove(WorkerId id);

  // Pointers are valid until the worker is removed.
  const std::map<WorkerId, Worker>& workers() const { return workers_; }

  // Everybody counts as heard of at `now`.
  void ForgiveSilence(absl::Time now);
  std::vector<WorkerId> SilentSince(absl::Time limit) const;
  absl::Time LongestSilent() const;  // InfiniteFuture: no worker

 private:
  const std::string version_;
  const std::string network_namespace_;
  WorkerId next_id_ = 1;
  std::map<WorkerId, Worker> workers_;
};

// `address`, its host filled in from peer_host if it has none (":50052").
std::string ResolveAddress(std::string_view address,
                           std::string_view peer_host);

// The host of a gRPC peer, fit for an address: "ipv4:10.0.0.7:4242" gives
// "10.0.0.7", "ipv6:%5B::1%5D:4242" gives "[::1]"; empty for anything else.
std::string PeerHost(std::string_view peer);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_WORKER_REGISTRY_H_
