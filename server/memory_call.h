#ifndef ITHACA_SERVER_MEMORY_CALL_H_
#define ITHACA_SERVER_MEMORY_CALL_H_

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/metrics.h"

namespace ithaca::server {

// One unary call of MemoryService. It ends once: by Answer, by Refuse, or by
// its client, which is free at once then while what was begun goes on.
// Thread-safe.
class MemoryCall : public grpc::ServerUnaryReactor,
                   public std::enable_shared_from_this<MemoryCall> {
 public:
  // All outlive the call; it keeps itself until gRPC is done with it.
  static std::shared_ptr<MemoryCall> Start(grpc::CallbackServerContext* context,
                                           grpc::ByteBuffer* response,
                                           Metrics* metrics, Method method);

  // Only the first end has an effect.
  void Answer(const google::protobuf::Message& response);
  void Refuse(const absl::Status& why);

  bool ended() const;

 private:
  MemoryCall(grpc::CallbackServerContext* context, grpc::ByteBuffer* response,
             Metrics* metrics, Method method);

  void End(const absl::Status& status, grpc::ByteBuffer response);
  void OnCancel() override;
  void OnDone() override;

  grpc::CallbackServerContext* const context_;
  grpc::ByteBuffer* const response_;
  std::shared_ptr<MemoryCall> self_;

  mutable absl::Mutex mutex_;
  CallRecord record_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMORY_CALL_H_
