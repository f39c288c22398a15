#ifndef ITHACA_WORKER_RANK_TEST_SERVER_H_
#define ITHACA_WORKER_RANK_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/attention_call.h"
#include "core/bearer_token.h"
#include "core/sequence_parallel_plan.h"
#include "ithaca/internal/v1/worker.grpc.pb.h"
#include "worker/cpu_regions.h"
#include "worker/fake_rank_device.h"
#include "worker/group_session.h"
#include "worker/host_buffer_pool.h"
#include "worker/rank_service.h"
#include "worker/region_table.h"

namespace ithaca {

inline constexpr uint64_t kTestGeneration = 42;

// For tests: a rank's RankService on a port of the loopback, over a group of
// ranks on threads.
class RankTestServer {
 public:
  explicit RankTestServer(BearerToken token = BearerToken())
      : service_(
            &staging_, &regions_, [this](const RankReport&) { ++reports_; },
            std::move(token)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.SetMaxReceiveMessageSize(-1);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port),
                                         grpc::InsecureChannelCredentials(),
                                         arguments);
    stub_ = internal::v1::RankService::NewStub(channel_);
  }
  ~RankTestServer() {
    service_.SetSession(nullptr);
    server_->Shutdown();
  }

  void StartSession(const std::shared_ptr<InProcessGroup>& group, int rank) {
    GroupSessionOptions options;
    options.open_device = OpenFakeRankDevice(group);
    options.buffers = &outputs_;
    options.regions = &regions_;
    GroupMembership membership;
    membership.generation = kTestGeneration;
    membership.rank = rank;
    membership.world_size = group->world_size();
    service_.SetSession(std::make_shared<GroupSession>(
        options, membership, std::make_shared<NoRendezvousStore>(),
        GroupSessionEvents{}));
  }

  grpc::Status Run(const internal::v1::RunAttentionRequest& request,
                   internal::v1::RunAttentionResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::minutes(1));
    return stub_->RunAttention(&context, request, response);
  }

  internal::v1::RankService::Stub* stub() { return stub_.get(); }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  RankService* service() { return &service_; }
  HostBufferPool* staging() { return &staging_; }
  int reports() const { return reports_; }

 private:
  std::atomic<int> reports_{0};
  HostBufferPool outputs_, staging_;
  const std::unique_ptr<RegionOpener> opener_ = MakeCpuRegionOpener();
  RegionTable regions_{opener_.get()};
  RankService service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<internal::v1::RankService::Stub> stub_;
};

// A float32 call of NATIVE precision, without its number; the last rank
// returns the text output.
inline internal::v1::AttentionCall MakeTestCall(
    const SequenceParallelPlan& plan, int rank) {
  const AttentionShape& shape = plan.shape;
  internal::v1::AttentionCall call;
  call.set_generation(kTestGeneration);
  call.set_plan_fingerprint(plan.Fingerprint());
  call.set_dtype(ithaca::v1::DATA_TYPE_FLOAT32);
  call.set_batch(shape.batch);
  call.set_image_tokens(shape.image_tokens);
  call.set_text_tokens(shape.text_tokens);
  for (const int64_t valid : shape.valid_text_tokens) {
    call.add_valid_text_tokens(valid);
  }
  call.set_order(shape.order == TokenOrder::kTextFirst
                     ? ithaca::v1::TOKEN_ORDER_TEXT_FIRST
                     : ithaca::v1::TOKEN_ORDER_IMAGE_FIRST);
  call.set_image_queries_only(shape.image_queries_only);
  call.set_num_heads(shape.num_heads);
  call.set_num_kv_heads(shape.num_kv_heads);
  call.set_head_dim(shape.head_dim);
  call.set_softmax_scale(plan.options.softmax_scale);
  call.set_communication_precision(ithaca::v1::COMMUNICATION_PRECISION_NATIVE);
  call.set_head_schedule(ithaca::v1::HEAD_SCHEDULE_AUTO);
  call.set_kernel(ithaca::v1::ATTENTION_KERNEL_AUTO);
  call.set_return_text_output(rank == plan.world_size - 1);
  return call;
}

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_TEST_SERVER_H_
