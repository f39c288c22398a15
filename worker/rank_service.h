#ifndef ITHACA_WORKER_RANK_SERVICE_H_
#define ITHACA_WORKER_RANK_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "core/bearer_token.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "worker/group_session.h"
#include "worker/host_buffer_pool.h"
#include "worker/rank_stream.h"
#include "worker/region_table.h"
#include "worker/serving_session.h"
#include "worker/ulysses_attention.h"

namespace ithaca {

// ithaca.internal.v1.RankService: hands calls to the session they are for.
// Messages are taken and given as raw bytes, so that tensors are copied once,
// from what the network received onto the device, and back; those that come in
// a stream once more, so that what the network received can go at once.
//
// A caller's deadline or cancellation is not looked at once a call has its
// number: ranks finish what they entered, or the others would wait.
//
// Thread-safe.
class RankService
    : public internal::v1::RankService::WithRawCallbackMethod_RunAttention<
          internal::v1::RankService::WithRawCallbackMethod_StreamAttention<
              internal::v1::RankService::WithCallbackMethod_AttachRegion<
                  internal::v1::RankService::WithCallbackMethod_DetachRegion<
                      internal::v1::RankService::Service>>>> {
 public:
  // staging: for the inputs of streams; regions: of the clients' memory; both
  // outlive this. on_report: each call that went well, on the thread that ran
  // it. token: what callers must send.
  RankService(HostBufferPool* staging, RegionTable* regions,
              std::function<void(const RankReport&)> on_report,
              BearerToken token);

  // Calls of its generation go to `session` from now on; null: to none.
  void SetSession(std::shared_ptr<GroupSession> session) {
    sessions_.Set(std::move(session));
  }

  // Waits until the session, if there is one, has no call to run; false if it
  // still had at `limit`.
  bool AwaitIdle(absl::Duration limit) { return sessions_.AwaitIdle(limit); }

 private:
  grpc::ServerUnaryReactor* RunAttention(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamAttention(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* AttachRegion(
      grpc::CallbackServerContext* context,
      const internal::v1::AttachRegionRequest* request,
      internal::v1::AttachRegionResponse* response) override;
  grpc::ServerUnaryReactor* DetachRegion(
      grpc::CallbackServerContext* context,
      const internal::v1::DetachRegionRequest* request,
      internal::v1::DetachRegionResponse* response) override;

  RegionTable* const regions_;
  ServingSession sessions_;
  const RankStream::Host host_;
  const BearerToken token_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_SERVICE_H_
