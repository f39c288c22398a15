#ifndef ITHACA_WORKER_MEMBERSHIP_H_
#define ITHACA_WORKER_MEMBERSHIP_H_

#include <grpcpp/channel.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "worker/group_session.h"
#include "worker/membership_stream.h"
#include "worker/session_reaper.h"

namespace ithaca {

struct MembershipOptions {
  internal::v1::Join join;  // what this worker says of itself
  // Sent with each call to the coordinator; empty: none.
  std::string authorization;
  GroupSessionOptions session;
  // Pause before the coordinator is dialled again: the first, doubled each
  // time up to the longest.
  absl::Duration first_redial_delay = absl::Milliseconds(100);
  absl::Duration longest_redial_delay = absl::Seconds(2);
};

// What a membership tells the worker it belongs to. Called on its thread.
struct MembershipEvents {
  // Calls go to this session from now on; null: to none.
  std::function<void(std::shared_ptr<GroupSession>)> on_session;
  // The stream to the coordinator is over: what it had asked for besides
  // sessions is void.
  std::function<void()> on_coordinator_lost;
  // The coordinator will never take this worker (another version, a GPU that
  // is taken): it stops dialling.
  std::function<void(const absl::Status&)> on_refused;
  // The coordinator asks this worker to exit.
  std::function<void(const std::string& reason)> on_shutdown;
};

// A worker's side of WorkerRegistry.Membership: joins, says that it lives,
// and enters and leaves groups as it is told. When the coordinator vanishes it
// leaves its group and dials again, for ever.
//
// One thread of its own; it never waits for a group to form or to end, so that
// heartbeats go on. Thread-safe.
class Membership {
 public:
  // channel: to the coordinator, from MakeCoordinatorChannel.
  Membership(std::shared_ptr<grpc::Channel> channel, MembershipOptions options,
             MembershipEvents events);
  ~Membership();  // Stop()s
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  void Start();

  // Tells the coordinator, if there is one, that this worker is to end, and
  // waits, until `deadline` at the latest, for its word that no call of this
  // worker's group is left.
  void Leave(absl::Time deadline);

  // Leaves the group and the coordinator. False if a session's thread did not
  // end within `limit`: the process can then only exit without clean-up.
  // Idempotent.
  bool Stop(absl::Duration limit = absl::Seconds(5));

 private:
  enum class StreamEnd { kRedial, kFinal };

  void Run();
  StreamEnd Serve();
  void Handle(const internal::v1::WorkerCommand& command);
  void Form(const internal::v1::FormGroup& form);
  // The session that is served, if any, is served no more and ends.
  void Retire(const absl::Status& why);
  // For the stream that is open when it is sent.
  void Post(internal::v1::WorkerEvent event);
  void SetAttached(bool attached);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<internal::v1::WorkerRegistry::Stub> stub_;
  const MembershipOptions options_;
  const MembershipEvents events_;

  // The thread's own.
  std::shared_ptr<GroupSession> session_;
  absl::Duration heartbeat_interval_ = absl::InfiniteDuration();
  bool welcomed_ = false;
  bool dismissed_ = false;  // the coordinator asked this worker to exit

  absl::Mutex mutex_;
  // Welcomed by a coordinator, and not dismissed by it.
  bool attached_ ABSL_GUARDED_BY(mutex_) = false;

  MembershipInbox inbox_;
  SessionReaper reaper_;
  std::thread thread_;
};

// Keepalive pings find a coordinator whose host is gone; reconnects are quick.
std::shared_ptr<grpc::Channel> MakeCoordinatorChannel(
    const std::string& address);

}  // namespace ithaca

#endif  // ITHACA_WORKER_MEMBERSHIP_H_
