#ifndef ITHACA_SERVER_ATTENTION_SERVICE_H_
#define ITHACA_SERVER_ATTENTION_SERVICE_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/bearer_token.h"
#include "ithaca/v1/attention.grpc.pb.h"
#include "server/byte_budget.h"
#include "server/client_call.h"
#include "server/group_manager.h"
#include "server/group_scheduler.h"
#include "server/in_flight_requests.h"
#include "server/metrics.h"
#include "server/region_table.h"
#include "server/streamed_call.h"
#include "server/timer_queue.h"

namespace ithaca::server {

// ithaca.v1.AttentionService: takes a call, has it checked and admitted
// (ClientCall), hands it to the scheduler, and turns its end into a response.
// Thread-safe; calls run on gRPC's threads.
class AttentionService
    : public ithaca::v1::AttentionService::WithRawCallbackMethod_Attention<
          ithaca::v1::AttentionService::WithRawCallbackMethod_StreamAttention<
              ithaca::v1::AttentionService::WithRawCallbackMethod_GetServerInfo<
                  ithaca::v1::AttentionService::Service>>> {
 public:
  struct Options {
    std::string version;
    std::string device;  // "cpu" or "cuda"
    int64_t max_message_bytes = int64_t{1} << 30;
    int64_t max_request_bytes = int64_t{4} << 30;
    BearerToken token;  // asked of every call; health and reflection are free
    // Memory planes that are enabled; nullptr: none.
    RegionTable* regions = nullptr;
    bool shared_memory = false;
    bool cuda_memory = false;
    // See StreamedCall::Host.
    absl::Duration stream_idle_timeout = absl::Seconds(60);
    absl::Duration rank_timeout = absl::Seconds(30);
  };

  // All outlive this.
  AttentionService(const GroupManager* manager, GroupScheduler* scheduler,
                   ByteBudget* budget, Metrics* metrics, Options options);

  grpc::ServerUnaryReactor* Attention(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StreamAttention(
      grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* GetServerInfo(grpc::CallbackServerContext* context,
                                          const grpc::ByteBuffer* request,
                                          grpc::ByteBuffer* response) override;

  // Waits until no call of either RPC is open: not only ended, but its response
  // handed to the network. false: some were by then.
  bool AwaitIdle(absl::Time deadline);

 private:
  class AttentionReactor;

  absl::Status DescribeServer(const grpc::CallbackServerContext& context,
                              const grpc::ByteBuffer& request,
                              grpc::ByteBuffer* response) const;
  void CountOpenCall(int change);

  const GroupManager* const manager_;
  const std::string version_;
  const std::string device_;
  const bool shared_memory_;
  const bool cuda_memory_;
  InFlightRequests in_flight_;
  CallServices services_;
  TimerQueue timers_;
  const StreamedCall::Host streams_;

  absl::Mutex mutex_;
  int64_t open_calls_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_ATTENTION_SERVICE_H_
