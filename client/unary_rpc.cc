#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/attention_rpc.h"
#include "client/attention_wire.h"
#include "client/call_context.h"
#include "client/memory_region.h"
#include "client/rpc_status.h"
#include "client/tensor_slices.h"

namespace ithaca::client {
namespace {

constexpr char kAttentionMethod[] = "/ithaca.v1.AttentionService/Attention";

class UnaryRpc : public PendingCall,
                 public std::enable_shared_from_this<UnaryRpc> {
 public:
  UnaryRpc(const AttentionArguments& arguments, AttentionCallback done)
      : expected_(OutputOf(arguments)), done_(std::move(done)) {}

  void Start(grpc::GenericStub* stub, const std::string& token,
             const AttentionArguments& arguments) {
    auto owned_context = std::make_shared<grpc::ClientContext>();
    grpc::ClientContext* context = owned_context.get();
    PrepareContext(token, arguments.deadline, context);
    if (const MemoryRegion* region = AnyRegionOf(arguments)) {
      AddLease(region->registration().lease, context);
      plane_ = region->plane();
    }
    request_ = EncodeAttentionRequest(
        arguments,
        [this](const TensorView& tensor) { return slices_->Make(tensor); });
    {
      const absl::MutexLock lock(&mutex_);
      context_ = std::move(owned_context);
    }
    stub->UnaryCall(context, kAttentionMethod, {}, &request_, &response_,
                    [rpc = shared_from_this()](const grpc::Status& status) {
                      rpc->OnDone(status);
                    });
  }

  void Cancel() override {
    std::shared_ptr<grpc::ClientContext> context;
    {
      const absl::MutexLock lock(&mutex_);
      context = context_;
    }
    if (context != nullptr) context->TryCancel();
  }

 private:
  void OnDone(const grpc::Status& status) {
    std::shared_ptr<grpc::ClientContext> context;
    {
      const absl::MutexLock lock(&mutex_);
      context = std::move(context_);
    }
    status_ = ToAbslStatus(status, *context);
    plane_ = PlaneOf(*context, plane_);
    context.reset();
    request_.Clear();
    slices_->WhenReleased([rpc = shared_from_this()] { rpc->Finish(); });
  }

  void Finish() {
    const AttentionCallback done = std::exchange(done_, nullptr);
    // Whoever hears of the end may take its region for another call.
    ExpectedOutput expected = std::exchange(expected_, {});
    absl::StatusOr<AttentionResult> result;
    if (status_.ok()) {
      result = DecodeAttentionResponse(&response_, expected);
      if (result.ok()) result->plane = plane_;
    } else {
      result = status_;
    }
    expected.region.region.reset();
    done(std::move(result));
  }

  const std::shared_ptr<TensorSlices> slices_ = TensorSlices::Create();
  absl::Mutex mutex_;
  // Gone once the RPC is: it keeps the RPC's buffers, and with them the
  // borrowed slices, from being freed.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  ExpectedOutput expected_;
  AttentionCallback done_;
  absl::Status status_;
  Plane plane_ = Plane::kUnary;
};

}  // namespace

std::shared_ptr<PendingCall> StartUnaryRpc(grpc::GenericStub* stub,
                                           const std::string& token,
                                           const AttentionArguments& arguments,
                                           AttentionCallback done) {
  auto rpc = std::make_shared<UnaryRpc>(arguments, std::move(done));
  rpc->Start(stub, token, arguments);
  return rpc;
}

}  // namespace ithaca::client
