#ifndef ITHACA_SERVER_REGION_ATTACHER_H_
#define ITHACA_SERVER_REGION_ATTACHER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "server/group_manager.h"

namespace ithaca::server {

// Tells workers of regions that come and go. A worker that has not been told of
// a region attaches it with the first call that names it, so what counts here
// is the refusal: a client hears of a region that its workers cannot reach when
// it registers it.
//
// Thread-safe. Callbacks come from gRPC's threads, or, where there is no worker
// to ask, from the caller's; never with a lock held.
class RegionAttacher {
 public:
  struct Options {
    // Pinning many gigabytes takes seconds.
    absl::Duration attach_timeout = absl::Seconds(60);
    absl::Duration detach_timeout = absl::Seconds(5);
  };

  // manager outlives this.
  RegionAttacher(const GroupManager* manager, Options options);
  ~RegionAttacher();  // Stop()s
  RegionAttacher(const RegionAttacher&) = delete;
  RegionAttacher& operator=(const RegionAttacher&) = delete;

  // Asks every member of every ready group. `done` gets OK if each has it or
  // is out of reach, which is its group's end; else one member's refusal,
  // which names the worker: kFailedPrecondition (no such object where it
  // runs, or it cannot be reached), kInvalidArgument, kUnimplemented,
  // kResourceExhausted, kUnavailable (not in time).
  void Attach(const internal::v1::Region& region,
              std::function<void(absl::Status)> done);

  // Has every worker that has joined forget it, in a group or not, as far as
  // they can be reached, then calls `done`.
  void Detach(const internal::v1::Region& region, std::function<void()> done);

  // Cuts short what is out, and all that is asked for later; returns once no
  // callback is running. Idempotent.
  void Stop();

 private:
  using Stub = internal::v1::RankService::Stub;
  struct Member {
    std::string worker;
    std::string address;
    std::shared_ptr<Stub> stub;
  };
  class Broadcast;

  std::vector<Member> Connected(const std::vector<GroupMember>& members);
  void Start(const std::shared_ptr<Broadcast>& broadcast,
             absl::Duration timeout);
  void OnAnswered(const std::shared_ptr<Broadcast>& broadcast);

  const GroupManager* const manager_;
  const Options options_;

  absl::Mutex mutex_;
  // By worker, of those that had joined when a region was last detached, and
  // others since.
  absl::flat_hash_map<std::string, Member> members_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::shared_ptr<Broadcast>> running_
      ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_REGION_ATTACHER_H_
