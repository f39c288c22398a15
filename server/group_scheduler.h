#ifndef ITHACA_SERVER_GROUP_SCHEDULER_H_
#define ITHACA_SERVER_GROUP_SCHEDULER_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/attention_call.h"
#include "server/admission_queue.h"
#include "server/fan_out.h"
#include "server/group_manager.h"
#include "server/metrics.h"
#include "server/pending_call.h"

namespace ithaca::server {

// Gives queued calls to groups: numbers them, sends each to every rank of one
// group, and ends it with what the ranks made of it. It proves groups ready by
// a call with a known answer, when they form and while they are idle.
//
// A streamed call gets its group first (Bind), so that its inputs can go there
// while they come, and its turn later, like any other.
//
// A number, once given, is sent to all ranks even if the client is gone by
// then: ranks run every number in order. A lost group ends its calls at once,
// with kUnavailable, unless another group is ready: then each is tried there,
// once, if its inputs are still held.
//
// Thread-safe. Work happens on the threads that call in and on gRPC's; one
// thread of its own keeps the probes' times.
class GroupScheduler : public GroupObserver {
 public:
  struct Options {
    // Calls a group may have at one time: the next one's tensors travel while
    // one is computed.
    int calls_in_flight = 2;
    // See CallTimeLimit.
    absl::Duration collective_timeout = absl::Seconds(30);
    // An idle group is probed this long after its last answer, and is not
    // ready while a probe has been out for longer than probe_patience.
    absl::Duration probe_interval = absl::Milliseconds(500);
    absl::Duration probe_patience = absl::Milliseconds(1400);
    // Told when Ready() changes, one call at a time; may be empty.
    std::function<void(bool ready)> on_ready_changed;
  };

  // All outlive this. The caller makes this the manager's observer.
  GroupScheduler(GroupManager* manager, AdmissionQueue* queue, Metrics* metrics,
                 Options options);
  ~GroupScheduler() override;  // Stop()s

  // Queues the call, or ends it at once: kUnavailable (no group is ready, or
  // draining), kResourceExhausted (the queue is full), each with a retry hint.
  void Submit(const std::shared_ptr<PendingCall>& call);

  // A group for a call that is to be streamed, and the way to its ranks.
  struct Placement {
    std::shared_ptr<RankChannels> channels;
    std::string group;
    uint64_t generation = 0;
    std::string device;
  };
  // Binds the call to the ready group with the least work, that of streams on
  // their way included. It has no slot there until its turn comes. From here
  // on it ends like a submitted call; a drain lets it go on.
  // Errors, each with a retry hint; the call has not ended: kUnavailable (no
  // group is ready, or draining), kResourceExhausted (the queue is full, or as
  // many calls are bound as may wait in it).
  absl::StatusOr<Placement> Bind(const std::shared_ptr<PendingCall>& call);

  // Ends a submitted call towards its client, with `status`; it does not reach
  // a group any more if it was still queued.
  void Cancel(const std::shared_ptr<PendingCall>& call,
              const absl::Status& status);

  // No call is taken any more; those taken go on. Not Ready from here on.
  void Drain();

  // Some group is proven and calls are taken.
  bool Ready() const;
  bool Ready(std::string_view group, uint64_t generation) const;

  // Kernels that every rank of some ready group has; nullopt: none is ready.
  std::optional<std::vector<AttentionKernelKind>> Kernels() const;

  // Ends every call and waits until no callback is running. Idempotent.
  // REQUIRES: the manager makes no more observer calls.
  void Stop();

  void OnGroupFormed(const Group& group) override;
  void OnGroupDraining(std::string_view name, uint64_t generation) override;
  void OnGroupLost(std::string_view name, uint64_t generation,
                   GroupFailureReason reason,
                   std::string_view message) override;

 private:
  struct Link;      // one generation of one group
  struct Dispatch;  // one call on its group
  using LinkPtr = std::shared_ptr<Link>;
  using DispatchPtr = std::shared_ptr<Dispatch>;

  void SubmitBound(const std::shared_ptr<PendingCall>& call);
  // Whether it was bound, and had not had its turn; now it is not.
  bool Unbind(const PendingCall& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void DispatchQueued();
  DispatchPtr NextDispatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send(const DispatchPtr& dispatch);
  void RunStreams(const DispatchPtr& dispatch, absl::Time now);
  grpc::Status StatusOf(const Dispatch& dispatch, int rank) const;
  absl::StatusOr<CallOutcome> Outcome(const Dispatch& dispatch) const;
  bool Claim(const DispatchPtr& dispatch);
  void OnRankFailure(const DispatchPtr& dispatch, int rank,
                     const absl::Status& status);
  void OnRanksDone(const DispatchPtr& dispatch);
  void EndAnswered(const DispatchPtr& dispatch);

  void FailGroup(const LinkPtr& link, GroupFailureReason reason,
                 const std::string& message);
  bool LoseGroup(const LinkPtr& link, const std::string& message);
  void ReleaseDrained();
  LinkPtr FindLink(std::string_view name, uint64_t generation) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void RetryOrEnd(const std::shared_ptr<PendingCall>& call,
                  const absl::Status& status);
  void EndQueuedIfNoGroup();

  void StartProbe(const LinkPtr& link);
  void OnProbeEnd(const LinkPtr& link,
                  const absl::StatusOr<CallOutcome>& outcome);
  void KeepProbing();
  std::vector<LinkPtr> LinksToProbe(absl::Time now, absl::Time* next,
                                    bool* suspected)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<DispatchPtr> OverdueRuns(absl::Time now, absl::Time* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyReady() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void NotifyReadiness();

  GroupManager* const manager_;
  AdmissionQueue* const queue_;
  Metrics* const metrics_;
  const Options options_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<LinkPtr> links_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int running_fan_outs_ ABSL_GUARDED_BY(mutex_) = 0;

  absl::Mutex notify_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  bool notified_ready_ ABSL_GUARDED_BY(notify_mutex_) = false;

  std::thread prober_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_SCHEDULER_H_
