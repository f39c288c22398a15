#ifndef ITHACA_CLIENT_SERVER_PLANES_H_
#define ITHACA_CLIENT_SERVER_PLANES_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/plane_choice.h"
#include "ithaca/v1/attention.grpc.pb.h"

namespace ithaca::client {

// What GetServerInfo says about planes: asked for when a call first needs it,
// and again after Forget. Thread-safe.
class ServerPlanes : public std::enable_shared_from_this<ServerPlanes> {
 public:
  // own_limit: max_message_bytes of this side.
  ServerPlanes(const std::shared_ptr<grpc::Channel>& channel, std::string token,
               uint64_t own_limit);

  // Calls `then` exactly once: in here, or on a thread of gRPC's. A server that
  // does not answer has no shared memory; the call itself will say what is
  // wrong with it.
  void Get(absl::Time deadline, std::function<void(const PlaneLimits&)> then);

  // Whoever answers next may be another server.
  void Forget();

 private:
  const std::unique_ptr<v1::AttentionService::Stub> stub_;
  const std::string token_;
  const uint64_t own_limit_;
  absl::Mutex mutex_;
  std::optional<PlaneLimits> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_SERVER_PLANES_H_
