#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/attention_rpc.h"
#include "client/attention_wire.h"
#include "client/call_context.h"
#include "client/memory_region.h"
#include "client/rpc_status.h"
#include "client/stream_wire.h"
#include "client/tensor_slices.h"

namespace ithaca::client {
namespace {

constexpr char kStreamMethod[] = "/ithaca.v1.AttentionService/StreamAttention";

class StreamRpc
    : public PendingCall,
      public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
      public std::enable_shared_from_this<StreamRpc> {
 public:
  StreamRpc(const AttentionArguments& arguments, AttentionCallback done)
      : writer_(
            arguments,
            [this](const TensorView& tensor) { return slices_->Make(tensor); }),
        reader_(OutputOf(arguments)),
        done_(std::move(done)) {}

  void Start(grpc::GenericStub* stub, const std::string& token,
             const AttentionArguments& arguments) {
    self_ = shared_from_this();
    auto owned_context = std::make_shared<grpc::ClientContext>();
    grpc::ClientContext* context = owned_context.get();
    PrepareContext(token, arguments.deadline, context);
    if (const MemoryRegion* region = AnyRegionOf(arguments)) {
      AddLease(region->registration().lease, context);
      plane_ = region->plane();
    }
    {
      const absl::MutexLock lock(&mutex_);
      context_ = std::move(owned_context);
    }
    stub->PrepareBidiStreamingCall(context, kStreamMethod, {}, this);
    WriteNext();
    StartRead(&received_);
    StartCall();
  }

  void Cancel() override {
    std::shared_ptr<grpc::ClientContext> context;
    {
      const absl::MutexLock lock(&mutex_);
      context = context_;
    }
    if (context != nullptr) context->TryCancel();
  }

  void OnWriteDone(bool ok) override {
    if (ok) WriteNext();  // else the call is over: OnDone comes
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    read_status_ = reader_.Take(&received_);
    if (read_status_.ok()) {
      StartRead(&received_);
    } else {
      Cancel();
    }
  }

  void OnDone(const grpc::Status& status) override {
    std::shared_ptr<grpc::ClientContext> context;
    {
      const absl::MutexLock lock(&mutex_);
      context = std::move(context_);
    }
    status_ = read_status_.ok() ? ToAbslStatus(status, *context) : read_status_;
    plane_ = PlaneOf(*context, plane_);
    context.reset();
    writer_.Clear();
    sent_.Clear();
    received_.Clear();
    slices_->WhenReleased(
        [rpc = std::exchange(self_, nullptr)] { rpc->Finish(); });
  }

 private:
  void WriteNext() {
    std::optional<grpc::ByteBuffer> next = writer_.Next();
    if (!next.has_value()) {
      StartWritesDone();
      return;
    }
    sent_.Swap(&*next);
    StartWrite(&sent_);
  }

  void Finish() {
    const AttentionCallback done = std::exchange(done_, nullptr);
    if (!status_.ok()) {
      done(status_);
      return;
    }
    auto result = reader_.Finish();
    if (result.ok()) result->plane = plane_;
    done(std::move(result));
  }

  const std::shared_ptr<TensorSlices> slices_ = TensorSlices::Create();
  absl::Mutex mutex_;
  // Gone once the RPC is, as in UnaryRpc.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  StreamRequestWriter writer_;   // of the writing reactions
  grpc::ByteBuffer sent_;        // the same
  StreamResponseReader reader_;  // of the reading reactions
  grpc::ByteBuffer received_;    // the same
  absl::Status read_status_;     // the same
  AttentionCallback done_;
  absl::Status status_;
  Plane plane_ = Plane::kStream;
  std::shared_ptr<StreamRpc> self_;  // until OnDone
};

}  // namespace

std::shared_ptr<PendingCall> StartStreamRpc(grpc::GenericStub* stub,
                                            const std::string& token,
                                            const AttentionArguments& arguments,
                                            AttentionCallback done) {
  auto rpc = std::make_shared<StreamRpc>(arguments, std::move(done));
  rpc->Start(stub, token, arguments);
  return rpc;
}

}  // namespace ithaca::client
