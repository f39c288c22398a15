#ifndef ITHACA_CLIENT_ATTENTION_RPC_H_
#define ITHACA_CLIENT_ATTENTION_RPC_H_

#include <grpcpp/alarm.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/attention_call.h"
#include "client/attention_client.h"

namespace ithaca::client {

// Deadline (none if infinite) and token of one call.
void PrepareContext(const std::string& token, absl::Time deadline,
                    grpc::ClientContext* context);

// One Attention call from its start to its callback. It holds itself alive,
// and ends when the RPC has ended and no slice borrows the caller's memory.
class AttentionRpc : public PendingCall,
                     public std::enable_shared_from_this<AttentionRpc> {
 public:
  static std::shared_ptr<AttentionRpc> Start(
      grpc::GenericStub* stub, const std::string& token,
      const AttentionArguments& arguments, AttentionCallback done);

  void Cancel() override;

 private:
  AttentionRpc(const AttentionArguments& arguments, AttentionCallback done);

  grpc::Slice MakeSlice(const TensorView& tensor);
  void OnRpcDone(const grpc::Status& status);
  void OnBorrowEnd();
  void Finish();

  absl::Mutex mutex_;
  // Gone once the RPC is: it keeps the RPC's buffers, and with them the
  // borrowed slices, from being freed.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  const TensorView query_;
  const std::span<std::byte> destination_;
  AttentionCallback done_;
  absl::Status status_;
  // The RPC, and each slice over memory that is only borrowed.
  std::atomic<int> holds_ = 1;
  grpc::Alarm finish_alarm_;
  std::shared_ptr<AttentionRpc> self_;  // while the alarm is set
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ATTENTION_RPC_H_
