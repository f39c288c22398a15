#ifndef ITHACA_CLIENT_FAKE_ATTENTION_SERVICE_H_
#define ITHACA_CLIENT_FAKE_ATTENTION_SERVICE_H_

#include <grpcpp/server.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <string>

#include "ithaca/v1/attention.grpc.pb.h"

// An AttentionService in this process, for tests of the client: it speaks
// plain protobuf, so that what passes here is the public wire format. How a
// call is answered is the test's function; by default the output is the query.

namespace ithaca::client {

class FakeAttentionService {
 public:
  using AttentionFunction = std::function<grpc::Status(
      grpc::CallbackServerContext* context, const v1::AttentionRequest& request,
      v1::AttentionResponse* response)>;

  // Calls run on gRPC's threads, several at once.
  explicit FakeAttentionService(AttentionFunction attention = Echo);
  ~FakeAttentionService();

  static grpc::Status Echo(grpc::CallbackServerContext* context,
                           const v1::AttentionRequest& request,
                           v1::AttentionResponse* response);

  std::string address() const;  // 127.0.0.1:port

 private:
  class Service;

  std::unique_ptr<Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_FAKE_ATTENTION_SERVICE_H_
