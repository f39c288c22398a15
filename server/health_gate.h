#ifndef ITHACA_SERVER_HEALTH_GATE_H_
#define ITHACA_SERVER_HEALTH_GATE_H_

#include <grpcpp/server_builder.h>

#include "absl/synchronization/notification.h"

namespace ithaca::server {

// gRPC's health service says SERVING of a whole server until it is told
// otherwise, and it can be told only once the server serves. This lets its
// calls wait until then. It outlives the server. Thread-safe.
class HealthGate {
 public:
  // Call it before the server is built.
  void AddTo(grpc::ServerBuilder* builder);

  // The service has been told. Call it once, soon after the server is built.
  void Open() { opened_.Notify(); }

 private:
  absl::Notification opened_;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_HEALTH_GATE_H_
