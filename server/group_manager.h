#ifndef ITHACA_SERVER_GROUP_MANAGER_H_
#define ITHACA_SERVER_GROUP_MANAGER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// The workers that have joined and the groups they are in: who is a member of
// what, under which generation, and in which state. It forms groups and buries
// them; it sends them no calls.

namespace ithaca::server {

enum class GroupState : uint8_t { kForming, kReady, kDraining, kFailed };

std::string_view Name(GroupState state);  // "forming"

// Why a group ended; the label `reason` of group_failures_total.
enum class GroupFailureReason : uint8_t {
  kWorkerLost,        // a member's stream ended or fell silent
  kCollectiveFailed,  // a rank reported its exchange or device broken
  kCallTimeout,       // a call outlasted the collective timeout
  kProbeFailed,       // the readiness call failed or was wrong
  kFormationFailed,   // members could not connect in time
};

std::string_view Name(GroupFailureReason reason);  // "worker_lost"

struct GroupMember {
  std::string worker;           // "host/pid", as the worker named itself
  std::string address;          // "host:port" of its RankService
  std::string device;           // "cpu", "cuda:0"
  std::vector<int> kernels;     // ithaca.v1.AttentionKernel values
  std::string authorization{};  // to send with each call; may be empty
  // The same RankService's "unix-abstract:NAME"; empty: not within reach.
  std::string local_socket{};
};

// One generation of one group. members[r] is rank r.
struct Group {
  std::string name;
  uint64_t generation = 0;
  GroupState state = GroupState::kForming;
  std::vector<GroupMember> members;
};

// Told of groups' lives, in order, one call at a time, never with the
// manager's lock held (so an observer may call back into the manager).
class GroupObserver {
 public:
  virtual ~GroupObserver() = default;
  // All members are connected; the group may be called, and is not ready
  // until someone has proven it and called GroupManager::MarkReady.
  virtual void OnGroupFormed(const Group& group) = 0;
  // A member is to end: no new call may be sent to the group, and once those
  // that it has are done, it is to be given to GroupManager::Release.
  virtual void OnGroupDraining(std::string_view name, uint64_t generation) = 0;
  // No call may be sent under this generation any more. Sent once for each
  // OnGroupFormed, but for groups that were released.
  virtual void OnGroupLost(std::string_view name, uint64_t generation,
                           GroupFailureReason reason,
                           std::string_view message) = 0;
};

// The door through which the data path sees groups. Thread-safe.
class GroupManager {
 public:
  virtual ~GroupManager() = default;

  // REQUIRES: before the first worker joins; the observer outlives this.
  virtual void SetObserver(GroupObserver* observer) = 0;

  // The group of this generation answered a probe with the right numbers.
  // Ignored if the generation is over.
  virtual void MarkReady(std::string_view name, uint64_t generation) = 0;

  // The data path saw the group break: its members leave and form anew, under
  // the next generation. Ignored if the generation is over.
  virtual void ReportFailure(std::string_view name, uint64_t generation,
                             GroupFailureReason reason,
                             std::string_view message) = 0;

  // The draining group has no call any more: its members leave, and those that
  // stay form anew. No failure: the observer hears no more of it. Ignored if
  // the generation is over.
  virtual void Release(std::string_view name, uint64_t generation) = 0;

  // Every group now, for GetServerInfo and gauges; formed or not.
  virtual std::vector<Group> Groups() const = 0;

  // Every worker that has joined, whatever group it is in or none.
  virtual std::vector<GroupMember> JoinedWorkers() const = 0;

  struct WorkerCounts {
    int joined = 0;  // in no group
    int forming = 0;
    int in_group = 0;
  };
  virtual WorkerCounts Workers() const = 0;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GROUP_MANAGER_H_
