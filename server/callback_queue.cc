#include "server/callback_queue.h"

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

namespace ithaca::server {

void KeepCallbackQueue() {
  // A server that listens nowhere holds the queue. Kept where a search for
  // leaks finds it.
  [[gnu::used]] static const grpc::Server* const server = [] {
    auto* const service = new grpc::CallbackGenericService;
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(service);
    return builder.BuildAndStart().release();
  }();
}

}  // namespace ithaca::server
