#ifndef ITHACA_WORKER_GROUP_SESSION_H_
#define ITHACA_WORKER_GROUP_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/call_sequencer.h"
#include "worker/host_buffer_pool.h"
#include "worker/rank_call.h"
#include "worker/rank_device.h"
#include "worker/rank_executor.h"
#include "worker/region_table.h"
#include "worker/rendezvous_store.h"
#include "worker/warm_shapes.h"

namespace ithaca {

// A place in one generation of a group.
struct GroupMembership {
  std::string group;
  uint64_t generation = 0;
  int rank = 0;
  int world_size = 1;
  std::string rendezvous_id;
  absl::Duration formation_timeout = absl::Seconds(15);
  absl::Duration collective_timeout = absl::Seconds(30);
};

// What a session tells its owner. Called on the session's thread.
struct GroupSessionEvents {
  // Once: the group is connected, or why it is not.
  std::function<void(const absl::Status&)> on_formed;
  // At most once, after on_formed(OK): a call broke the group, and nobody had
  // aborted the session before.
  std::function<void(const absl::Status&)> on_lost;
};

struct GroupSessionOptions {
  // Called once by each session, on its thread: a device of its own, so that
  // one that is still being torn down shares nothing with the next.
  std::function<absl::StatusOr<std::unique_ptr<RankDevice>>()> open_device;
  HostBufferPool* buffers = nullptr;  // outlives the session
  // Of the clients' memory; outlives the session. Null: calls have none.
  RegionTable* regions = nullptr;
  // Calls to prepare for once the group is formed, before the first call runs.
  // One that cannot be prepared is logged and left out.
  std::vector<WarmShape> warm_shapes;
  // For tests of faults: see RankExecutor::DelayVotes.
  absl::Duration vote_delay = absl::ZeroDuration();
};

// One generation of membership in a group: connects to the other ranks, then
// runs calls in their order, until it is aborted. It owns one thread, which
// does all of that, and everything that the generation has on the device.
//
// Thread-safe.
class GroupSession {
 public:
  using Done = std::function<void(absl::StatusOr<RankResult>)>;

  // Begins to form the group.
  GroupSession(const GroupSessionOptions& options, GroupMembership membership,
               std::shared_ptr<RendezvousStore> store,
               GroupSessionEvents events);
  // Aborts and waits for the thread. REQUIRES: not on it.
  ~GroupSession();
  GroupSession(const GroupSession&) = delete;
  GroupSession& operator=(const GroupSession&) = delete;

  const GroupMembership& membership() const { return membership_; }

  // Runs the call when its turn has come; `done` is called once, on any
  // thread. Errors of Submit (`done` is then never called): see CallSequencer.
  // Errors given to done: see RankExecutor::Run, and the reason of Abort.
  absl::Status Submit(RankCall call, Done done);

  // Ends the session for this reason: calls that wait or are in an exchange
  // end with it. Returns within what Communicator::Abort takes. Idempotent.
  void Abort(const absl::Status& why);

  // See CallSequencer.
  bool AwaitIdle(absl::Duration limit) { return sequencer_.AwaitIdle(limit); }

 private:
  void Run();
  void WarmUp();
  void FailToForm(const absl::Status& why);
  void RunCall(RankCall call, const Done& done);
  // Whether it was this abort that ended the session.
  bool AbortOnce(const absl::Status& why);
  absl::Status Aborted();

  const GroupSessionOptions options_;
  const GroupMembership membership_;
  const std::shared_ptr<RendezvousStore> store_;
  const GroupSessionEvents events_;
  CallSequencer sequencer_;
  RankExecutor* executor_ = nullptr;  // the thread's own, while calls run

  absl::Mutex mutex_;
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  // While it may be aborted.
  Communicator* communicator_ ABSL_GUARDED_BY(mutex_) = nullptr;

  std::thread thread_;  // last: uses all of the above
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_GROUP_SESSION_H_
