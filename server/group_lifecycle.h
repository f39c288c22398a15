#ifndef ITHACA_SERVER_GROUP_LIFECYCLE_H_
#define ITHACA_SERVER_GROUP_LIFECYCLE_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/group_former.h"
#include "server/group_manager.h"
#include "server/group_manager_options.h"
#include "server/worker_registry.h"

// The life of groups as a state machine: what happened and when goes in,
// commands to workers and news for the observer come out. No thread, no clock,
// no I/O; not thread-safe.
//
//   (free workers) -> forming -> formed -> ready -> lost -> (free workers)
//                        |          |  a member is to end: its calls go on
//                        |          +-> draining -> (free workers)
//                        |  a member died, said no, or time ran out
//                        +-> failed -> (free workers), after a pause
//
// Every attempt has a generation and a rendezvous id of its own, and an event
// of any generation but the group's present one is ignored.

namespace ithaca::server {

// What the state machine asks for. Must not call back into it.
class GroupEffects {
 public:
  virtual ~GroupEffects() = default;
  virtual void Send(WorkerId worker, internal::v1::WorkerCommand command) = 0;
  // The worker is no member any more: ends its stream.
  virtual void Disconnect(WorkerId worker, absl::Status why) = 0;
  virtual void KillLocalSlot(int slot) = 0;
  virtual void WorkerLost(std::string_view worker, std::string_view why) = 0;
  // In good order: it had said so.
  virtual void WorkerLeft(std::string_view worker) = 0;
  virtual void OpenRendezvous(std::string_view id) = 0;
  virtual void CloseRendezvous(std::string_view id) = 0;
  virtual void GroupFormed(Group group) = 0;
  virtual void GroupDraining(std::string name, uint64_t generation) = 0;
  virtual void GroupLost(std::string name, uint64_t generation,
                         GroupFailureReason reason, std::string message) = 0;
  virtual void FormationFailed(std::string name, uint64_t generation,
                               std::string message) = 0;
};

class GroupLifecycle {
 public:
  // `effects` outlives this. `now` is any clock that never goes back, the same
  // one in every call. REQUIRES: options.first_generation >= 1.
  GroupLifecycle(const GroupManagerOptions& options, GroupEffects* effects,
                 absl::Time now);

  // A worker joins: first Join (errors: see WorkerRegistry::Admit), then, with
  // its stream ready for Send, Welcome.
  absl::StatusOr<WorkerId> Join(const internal::v1::Join& join,
                                std::string_view peer_host, absl::Time now);
  void Welcome(WorkerId worker, absl::Time now);
  void OnEvent(WorkerId worker, const internal::v1::WorkerEvent& event,
               absl::Time now);
  void OnStreamEnd(WorkerId worker, absl::Time now);

  // From the data path; see GroupManager.
  void MarkReady(std::string_view name, uint64_t generation);
  void ReportFailure(std::string_view name, uint64_t generation,
                     GroupFailureReason reason, std::string_view message,
                     absl::Time now);

  void Release(std::string_view name, uint64_t generation, absl::Time now);

  void Drain();
  // Tells the workers that this coordinator started to exit.
  void DismissLocalWorkers(const std::string& reason);

  // Acts on every deadline that has passed. Call it at NextDeadline() or
  // before; a call that comes later than the heartbeat limit means that this
  // process slept, and nobody is blamed for the silence.
  void Tick(absl::Time now);
  absl::Time NextDeadline() const;

  std::vector<Group> Groups() const;
  std::vector<GroupMember> JoinedWorkers() const;
  GroupManager::WorkerCounts Workers() const;

 private:
  // A name that groups bear one after the other.
  struct Seat {
    std::string name;
    Group group;                    // members empty while failed
    bool formed = false;            // GroupFormed was told
    std::string rendezvous_id;      // empty while failed
    std::vector<WorkerId> workers;  // by rank
    std::set<WorkerId> connected;   // said that they formed
    absl::Time formation_deadline;  // while forming
    absl::Time failed_at;           // while failed
  };

  Seat* FindSeat(std::string_view name, uint64_t generation);
  Seat* FreeSeat();
  void FormGroups(absl::Time now);
  void BeginFormation(const std::vector<WorkerId>& members, absl::Time now);
  void OnFormResult(WorkerId worker, const internal::v1::FormResult& result,
                    absl::Time now);
  void OnLeaving(Worker* worker, absl::Time now);
  void Dismiss(const Worker& worker, const std::string& reason);
  void EndThoseThatCannotAbort(absl::Time now);
  void RemoveWorker(WorkerId worker, const std::string& why, absl::Time now);
  // Ends the seat's generation, formed or not, and frees its members. Without
  // a reason it is no failure.
  void End(Seat* seat, std::optional<GroupFailureReason> reason,
           const std::string& message, absl::Time now);

  const GroupManagerOptions options_;
  GroupEffects* const effects_;
  WorkerRegistry registry_;
  std::vector<Seat> seats_;
  uint64_t next_generation_;
  bool draining_ = false;
  // Formations pause after one that failed, longer each time.
  absl::Duration formation_pause_ = absl::ZeroDuration();
  absl::Time no_formation_before_ = absl::InfinitePast();
  // When waiting members could form a group without anyone joining.
  absl::Time reconsider_at_ = absl::InfiniteFuture();
  absl::Time last_tick_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_LIFECYCLE_H_
