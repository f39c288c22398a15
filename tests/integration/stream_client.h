#ifndef ITHACA_TESTS_INTEGRATION_STREAM_CLIENT_H_
#define ITHACA_TESTS_INTEGRATION_STREAM_CLIENT_H_

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <cstddef>
#include <memory>

#include "ithaca/v1/attention.grpc.pb.h"

namespace ithaca {

// A StreamAttention call, written plainly. Not thread-safe, but that sending
// and Receive may each have a thread.
class StreamClient {
 public:
  // The call that the unary RPC would take as `whole`.
  StreamClient(ithaca::v1::AttentionService::Stub* stub,
               ithaca::v1::AttentionRequest whole);

  // What is sent ends early if the call has ended.
  void SendRequest();
  void SendTensor(ithaca::v1::TensorRole role, size_t chunk_bytes);
  void HalfClose();
  // All of the three.
  void SendAll(size_t chunk_bytes);

  // Reads to the call's end, and puts the output's chunks together as the
  // unary RPC gives them.
  grpc::Status Receive(ithaca::v1::AttentionResponse* response);

  grpc::ClientContext& context() { return context_; }

 private:
  const ithaca::v1::AttentionRequest whole_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<ithaca::v1::StreamAttentionRequest,
                                           ithaca::v1::StreamAttentionResponse>>
      stream_;
};

}  // namespace ithaca

#endif  // ITHACA_TESTS_INTEGRATION_STREAM_CLIENT_H_
