#ifndef ITHACA_CLIENT_FAKE_ATTENTION_SERVICE_H_
#define ITHACA_CLIENT_FAKE_ATTENTION_SERVICE_H_

#include <grpcpp/server.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ithaca/v1/attention.grpc.pb.h"

// An AttentionService and a MemoryService in this process, for tests of the
// client: they speak plain protobuf, so that what passes here is the public
// wire format. How a call is answered is the test's function; by default the
// output is the query.

namespace ithaca::client {

class FakeMemoryService;

class FakeAttentionService {
 public:
  // Takes and makes whole messages, whichever plane the call came by.
  using AttentionFunction = std::function<grpc::Status(
      grpc::CallbackServerContext* context, const v1::AttentionRequest& request,
      v1::AttentionResponse* response)>;

  struct Options {
    uint64_t max_message_bytes = uint64_t{1} << 30;
    bool shared_memory = false;
    // Changes what a stream answers, to be a bad server.
    std::function<void(std::vector<v1::StreamAttentionResponse>*)> edit_stream =
        {};
  };

  // Calls run on gRPC's threads, several at once.
  explicit FakeAttentionService(AttentionFunction attention = Echo);
  FakeAttentionService(AttentionFunction attention, const Options& options);
  ~FakeAttentionService();

  static grpc::Status Echo(grpc::CallbackServerContext* context,
                           const v1::AttentionRequest& request,
                           v1::AttentionResponse* response);

  std::string address() const;  // 127.0.0.1:port
  FakeMemoryService& memory() { return *memory_; }

 private:
  class Service;

  std::unique_ptr<FakeMemoryService> memory_;
  std::unique_ptr<Service> service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_FAKE_ATTENTION_SERVICE_H_
