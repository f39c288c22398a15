#ifndef ITHACA_CLIENT_ATTENTION_CLIENT_H_
#define ITHACA_CLIENT_ATTENTION_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/attention_call.h"
#include "client/memory_region.h"
#include "client/plane.h"
#include "client/retry_after.h"
#include "client/tensor.h"
#include "ithaca/v1/attention.pb.h"

// The C++ client of ithaca.v1.AttentionService. Tensors travel inside the
// messages or in chunks, straight from and into the caller's memory, or in
// memory that both sides share (Plane).
//
//   auto client = Client::Connect({.address = "127.0.0.1:50051"});
//   auto result = (*client)->Attention({.query = q, .key = k, .value = v});
//
// Through shared memory a call copies its inputs and its output once, into and
// out of a region that is kept for the next call; a tensor of AllocateTensor
// lies in a region already and is not copied.
//
// Errors of a call are the server's, code and message: kInvalidArgument names
// the field; kResourceExhausted and kUnavailable can be tried again, not
// before RetryAfter(status) if it has a value.

namespace ithaca::client {

struct ClientOptions {
  std::string address = "127.0.0.1:50051";  // anything gRPC resolves
  // Sent as "authorization: Bearer <token>" when not empty.
  std::string token = {};
  // How long Connect waits for the first connection.
  absl::Duration connect_timeout = absl::Seconds(10);
  // A message above it is refused on this side, sent or received. A stream's
  // messages never are that large.
  int64_t max_message_bytes = int64_t{1} << 30;
  // kAuto: shared memory if the server offers it and can reach ours (it is on
  // this host), else a stream for large tensors, else messages. kSharedMemory
  // falls back like kAuto; kUnary and kStream are what they say. Not
  // kCudaMemory: such tensors are given as regions (RegisterCudaMemory).
  Plane plane = Plane::kAuto;
  // Shared memory kept for later calls while none uses it.
  uint64_t max_idle_shared_bytes = uint64_t{2} << 30;
  // Called once, the first time that a call can't take the plane it should,
  // with the reason (AttentionResult::plane_note); on any thread.
  std::function<void(const std::string& note)> on_fallback = {};
  // Connections that calls are spread over, in turn. One carries about
  // 1 to 2 GB/s.
  int connections = 1;
  // While a call runs and nothing arrives, the server is pinged after each
  // keepalive_time; without an answer in keepalive_timeout the connection is
  // dropped and its calls end with kUnavailable.
  absl::Duration keepalive_time = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(20);
};

// A call on its way. May be dropped: the call goes on.
class PendingCall {
 public:
  virtual ~PendingCall() = default;
  // The call ends with kCancelled, unless it has ended already. Thread-safe.
  virtual void Cancel() = 0;
};

using AttentionCallback = std::function<void(absl::StatusOr<AttentionResult>)>;

// Thread-safe. Calls that were started may outlive it.
class Client {
 public:
  // Errors: kInvalidArgument (an option is out of range), kUnavailable (nobody
  // answers at the address within connect_timeout).
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options);

  virtual ~Client() = default;

  // Returns once the call has ended and, for views without an owner, the
  // connection has let go of their bytes: at once, but for a call that ends
  // before its request is all sent, where it can take up to
  // keepalive_time + keepalive_timeout.
  // Errors, this side's own: kInvalidArgument (`output` is of another size
  // than query; a tensor is outside of its region), kInternal (a malformed
  // response). After an error other than a refusal the workers may still write
  // a call's output_region, until that region is dropped.
  virtual absl::StatusOr<AttentionResult> Attention(
      const AttentionArguments& arguments) = 0;

  // The same without waiting. `done` is called exactly once, on a thread of
  // gRPC's, maybe before this returns; it may start another call and must not
  // wait for one. The views' bytes (without an owner) and `output` stay
  // untouched by the caller until then. An owner may be dropped later, on any
  // thread. Copies into shared memory are made here, or on gRPC's threads.
  virtual std::shared_ptr<PendingCall> AttentionAsync(
      const AttentionArguments& arguments, AttentionCallback done) = 0;

  // A tensor, uninitialised, in shared memory that the server has; an ordinary
  // one where that is not to be had (its region is null then, and on_fallback
  // says why). May outlive the client. Waits: not from a callback.
  // Errors: kInvalidArgument (no such tensor can be).
  virtual absl::StatusOr<Tensor> AllocateTensor(
      ithaca::v1::DataType dtype, const std::vector<int64_t>& shape,
      absl::Time deadline) = 0;

  // A region in a GPU's memory, for TensorView::region and output_region. The
  // caller has waited for what writes it before a call begins. Waits: not from
  // a callback.
  // Errors: the server's, which say why it can't reach the memory.
  virtual absl::StatusOr<std::shared_ptr<MemoryRegion>> RegisterCudaMemory(
      const CudaMemory& memory, absl::Time deadline) = 0;

  virtual absl::StatusOr<ithaca::v1::GetServerInfoResponse> GetServerInfo(
      absl::Time deadline) = 0;

  // grpc.health.v1: whether `service` ("" = the whole server) is serving.
  // Errors: kNotFound (the server does not know the service).
  virtual absl::StatusOr<bool> IsServing(const std::string& service,
                                         absl::Time deadline) = 0;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ATTENTION_CLIENT_H_
