#ifndef ITHACA_WORKER_RANK_SERVICE_H_
#define ITHACA_WORKER_RANK_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "worker/group_session.h"
#include "worker/ulysses_attention.h"

namespace ithaca {

// ithaca.internal.v1.RankService: hands calls to the session they are for.
// Messages are taken and given as raw bytes, so that tensors are copied once,
// from what the network received onto the device, and back.
//
// A caller's deadline or cancellation is not looked at: ranks finish what they
// entered, or the others would wait.
//
// Thread-safe.
class RankService
    : public internal::v1::RankService::WithRawCallbackMethod_RunAttention<
          internal::v1::RankService::Service> {
 public:
  // on_report: each call that went well, on the thread that ran it.
  explicit RankService(std::function<void(const RankReport&)> on_report);

  // Calls of its generation go to `session` from now on; null: to none.
  void SetSession(std::shared_ptr<GroupSession> session);

  // Waits until the session, if there is one, has no call to run; false if it
  // still had at `limit`.
  bool AwaitIdle(absl::Duration limit);

 private:
  std::shared_ptr<GroupSession> session();

  grpc::ServerUnaryReactor* RunAttention(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;

  const std::function<void(const RankReport&)> on_report_;
  absl::Mutex mutex_;
  std::shared_ptr<GroupSession> session_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_SERVICE_H_
