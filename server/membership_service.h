#ifndef ITHACA_SERVER_MEMBERSHIP_SERVICE_H_
#define ITHACA_SERVER_MEMBERSHIP_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <memory>
#include <optional>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/bearer_token.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "server/group_former.h"
#include "server/rendezvous_service.h"

// ithaca.internal.v1.WorkerRegistry over gRPC's callback API: streams and
// their order of writes; what the events mean is its listener's affair.

namespace ithaca::server {

class MembershipStream;

class MembershipListener {
 public:
  virtual ~MembershipListener() = default;
  // The stream's first event. On OK the listener keeps the stream and the id
  // is in every later call; an error ends the stream.
  virtual absl::StatusOr<WorkerId> OnJoin(
      std::shared_ptr<MembershipStream> stream, const internal::v1::Join& join,
      std::string_view peer_host) = 0;
  virtual void OnEvent(WorkerId worker,
                       const internal::v1::WorkerEvent& event) = 0;
  // The worker says and hears nothing more. Once for each OnJoin that was OK.
  virtual void OnStreamEnd(WorkerId worker) = 0;
  // gRPC is done with the stream. Once for each OnJoin that was OK.
  virtual void OnStreamDone(WorkerId worker) = 0;
};

// The coordinator's end of one worker's membership. Thread-safe; no method
// blocks or calls the listener.
class MembershipStream
    : public grpc::ServerBidiReactor<internal::v1::WorkerEvent,
                                     internal::v1::WorkerCommand>,
      public std::enable_shared_from_this<MembershipStream> {
 public:
  MembershipStream(grpc::CallbackServerContext* context,
                   MembershipListener* listener);

  // Keeps itself alive until gRPC is done with it. An admission that is not OK
  // is the stream's end.
  void Start(const absl::Status& admission);

  // Commands arrive in the order of Send; those after an end are dropped.
  void Send(internal::v1::WorkerCommand command);
  // Ends the stream once all that was sent is on its way.
  void Close(absl::Status why);
  // Ends it now, whatever the peer does.
  void Cancel(const absl::Status& why);

 private:
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

  void FinishLocked(const absl::Status& why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  grpc::CallbackServerContext* const context_;
  MembershipListener* const listener_;
  std::shared_ptr<MembershipStream> self_;
  internal::v1::WorkerEvent event_;
  std::optional<WorkerId> worker_;  // set by the first read only

  absl::Mutex mutex_;
  // The front is being written while `writing_`.
  std::deque<internal::v1::WorkerCommand> unsent_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> closing_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// Takes calls that carry the token.
class MembershipService : public internal::v1::WorkerRegistry::CallbackService {
 public:
  // Both outlive this.
  MembershipService(MembershipListener* listener, RendezvousService* store,
                    BearerToken token);

 private:
  grpc::ServerBidiReactor<internal::v1::WorkerEvent,
                          internal::v1::WorkerCommand>*
  Membership(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* StoreSet(
      grpc::CallbackServerContext* context,
      const internal::v1::StoreSetRequest* request,
      internal::v1::StoreSetResponse* response) override;
  grpc::ServerUnaryReactor* StoreGet(
      grpc::CallbackServerContext* context,
      const internal::v1::StoreGetRequest* request,
      internal::v1::StoreGetResponse* response) override;

  MembershipListener* const listener_;
  RendezvousService* const store_;
  const BearerToken token_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMBERSHIP_SERVICE_H_
