#include "client/attention_rpc.h"

#include <grpc/support/time.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/attention_wire.h"
#include "client/rpc_status.h"

namespace ithaca::client {
namespace {

constexpr char kAttentionMethod[] = "/ithaca.v1.AttentionService/Attention";
// Below it a copy costs less than tracking who still reads the bytes.
constexpr size_t kCopyBelowBytes = 16384;

}  // namespace

void PrepareContext(const std::string& token, absl::Time deadline,
                    grpc::ClientContext* context) {
  if (deadline != absl::InfiniteFuture()) {
    context->set_deadline(absl::ToChronoTime(deadline));
  }
  if (!token.empty()) {
    context->AddMetadata("authorization", absl::StrCat("Bearer ", token));
  }
}

AttentionRpc::AttentionRpc(const AttentionArguments& arguments,
                           AttentionCallback done)
    : query_(arguments.query),
      destination_(arguments.output),
      done_(std::move(done)) {}

std::shared_ptr<AttentionRpc> AttentionRpc::Start(
    grpc::GenericStub* stub, const std::string& token,
    const AttentionArguments& arguments, AttentionCallback done) {
  std::shared_ptr<AttentionRpc> rpc(
      new AttentionRpc(arguments, std::move(done)));
  if (!arguments.output.empty() &&
      arguments.output.size() != arguments.query.bytes.size()) {
    rpc->status_ = absl::InvalidArgumentError(absl::StrCat(
        "output: expected ", arguments.query.bytes.size(),
        " bytes, as many as query has, got ", arguments.output.size()));
    rpc->Finish();
    return rpc;
  }
  auto owned_context = std::make_shared<grpc::ClientContext>();
  grpc::ClientContext* context = owned_context.get();
  PrepareContext(token, arguments.deadline, context);
  rpc->request_ = EncodeAttentionRequest(
      arguments,
      [&rpc](const TensorView& tensor) { return rpc->MakeSlice(tensor); });
  {
    const absl::MutexLock lock(&rpc->mutex_);
    rpc->context_ = std::move(owned_context);
  }
  stub->UnaryCall(
      context, kAttentionMethod, {}, &rpc->request_, &rpc->response_,
      [rpc](const grpc::Status& status) { rpc->OnRpcDone(status); });
  return rpc;
}

void AttentionRpc::Cancel() {
  std::shared_ptr<grpc::ClientContext> context;
  {
    const absl::MutexLock lock(&mutex_);
    context = context_;
  }
  if (context != nullptr) context->TryCancel();
}

grpc::Slice AttentionRpc::MakeSlice(const TensorView& tensor) {
  const size_t size = tensor.bytes.size();
  if (size < kCopyBelowBytes) return grpc::Slice(tensor.bytes.data(), size);
  void* bytes = const_cast<std::byte*>(tensor.bytes.data());
  if (tensor.owner != nullptr) {
    using Owner = std::shared_ptr<const void>;
    return grpc::Slice(
        bytes, size, [](void* owner) { delete static_cast<Owner*>(owner); },
        new Owner(tensor.owner));
  }
  using Borrower = std::shared_ptr<AttentionRpc>;
  holds_.fetch_add(1, std::memory_order_relaxed);
  return grpc::Slice(
      bytes, size,
      [](void* opaque) {
        const std::unique_ptr<Borrower> borrower(
            static_cast<Borrower*>(opaque));
        (*borrower)->OnBorrowEnd();
      },
      new Borrower(shared_from_this()));
}

void AttentionRpc::OnRpcDone(const grpc::Status& status) {
  std::shared_ptr<grpc::ClientContext> context;
  {
    const absl::MutexLock lock(&mutex_);
    context = std::move(context_);
  }
  status_ = ToAbslStatus(status, *context);
  context.reset();
  // Its slices hold this object, or the caller's owners, alive.
  request_.Clear();
  if (holds_.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish();
}

void AttentionRpc::OnBorrowEnd() {
  if (holds_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // The last slice went after the RPC, somewhere inside the transport and
  // under its locks: no place to run the caller's code.
  // The alarm keeps its function for as long as it lives, which is as long as
  // this object: the function must not hold it.
  self_ = shared_from_this();
  finish_alarm_.Set(gpr_now(GPR_CLOCK_MONOTONIC), [this](bool) {
    const auto self = std::exchange(self_, nullptr);
    self->Finish();
  });
}

void AttentionRpc::Finish() {
  const AttentionCallback done = std::exchange(done_, nullptr);
  if (!status_.ok()) {
    done(status_);
  } else {
    done(DecodeAttentionResponse(&response_, query_, destination_));
  }
}

}  // namespace ithaca::client
