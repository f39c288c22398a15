#ifndef ITHACA_CLIENT_ATTENTION_CLIENT_H_
#define ITHACA_CLIENT_ATTENTION_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/attention_call.h"
#include "ithaca/v1/attention.pb.h"

// The C++ client of ithaca.v1.AttentionService, unary plane: tensors travel
// inside the messages, straight from and into the caller's memory.
//
//   auto client = Client::Connect({.address = "127.0.0.1:50051"});
//   auto result = (*client)->Attention({.query = q, .key = k, .value = v});
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
  // A message above it is refused on this side, sent or received.
  int64_t max_message_bytes = int64_t{1} << 30;
  // Connections that calls are spread over, in turn. One carries about
  // 1 to 2 GB/s.
  int connections = 1;
  // While a call runs and nothing arrives, the server is pinged after each
  // keepalive_time; without an answer in keepalive_timeout the connection is
  // dropped and its calls end with kUnavailable.
  absl::Duration keepalive_time = absl::Seconds(30);
  absl::Duration keepalive_timeout = absl::Seconds(20);
};

// How long the server asks to wait before the call is tried again.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

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
  // than query), kInternal (a malformed response).
  virtual absl::StatusOr<AttentionResult> Attention(
      const AttentionArguments& arguments) = 0;

  // The same without waiting. `done` is called exactly once, on a thread of
  // gRPC's, maybe before this returns; it may start another call and must not
  // wait for one. The views' bytes (without an owner) and `output` stay
  // untouched by the caller until then. An owner may be dropped later, on any
  // thread.
  virtual std::shared_ptr<PendingCall> AttentionAsync(
      const AttentionArguments& arguments, AttentionCallback done) = 0;

  virtual absl::StatusOr<ithaca::v1::GetServerInfoResponse> GetServerInfo(
      absl::Time deadline) = 0;

  // grpc.health.v1: whether `service` ("" = the whole server) is serving.
  // Errors: kNotFound (the server does not know the service).
  virtual absl::StatusOr<bool> IsServing(const std::string& service,
                                         absl::Time deadline) = 0;
};

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ATTENTION_CLIENT_H_
