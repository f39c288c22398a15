#include "server/memory_call.h"

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/slice.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/status_mapping.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

std::shared_ptr<MemoryCall> MemoryCall::Start(
    grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
    Metrics* metrics, Method method) {
  std::shared_ptr<MemoryCall> call(
      new MemoryCall(context, response, metrics, method));
  call->self_ = call;
  return call;
}

MemoryCall::MemoryCall(grpc::CallbackServerContext* context,
                       grpc::ByteBuffer* response, Metrics* metrics,
                       Method method)
    : context_(context), response_(response), record_(metrics, method) {}

void MemoryCall::Answer(const google::protobuf::Message& response) {
  End(absl::OkStatus(),
      ToByteBuffer({grpc::Slice(response.SerializeAsString())}));
}

void MemoryCall::Refuse(const absl::Status& why) {
  End(why, grpc::ByteBuffer());
}

void MemoryCall::End(const absl::Status& status, grpc::ByteBuffer response) {
  const grpc::Status grpc_status = ToGrpc(status);
  const absl::MutexLock lock(&mutex_);
  if (std::exchange(ended_, true)) return;
  response_->Swap(&response);
  // Before the client can hear of the end: a scrape after it counts this call.
  record_.End(grpc_status.error_code());
  Finish(grpc_status);
}

bool MemoryCall::ended() const {
  const absl::MutexLock lock(&mutex_);
  return ended_;
}

void MemoryCall::OnCancel() {
  const bool late = std::chrono::system_clock::now() >= context_->deadline();
  Refuse(late ? absl::DeadlineExceededError("the call's deadline passed")
              : absl::CancelledError("the client cancelled the call"));
}

void MemoryCall::OnDone() { const auto self = std::move(self_); }

}  // namespace ithaca::server
