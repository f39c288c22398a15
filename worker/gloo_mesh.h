#ifndef ITHACA_WORKER_GLOO_MESH_H_
#define ITHACA_WORKER_GLOO_MESH_H_

#include <cstddef>
#include <exception>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "worker/rendezvous_store.h"

namespace ithaca {

// Where a rank's sockets listen; peers must be able to reach it.
struct GlooAddress {
  // A network interface ("eth0"); wins over `hostname`.
  std::string interface;
  // This host's name or address.
  std::string hostname = "127.0.0.1";
};

// One TCP connection between each two ranks of a group, through Gloo. No
// exchanges and no failure handling: those are GlooCommunicator's.
//
// Thread-safety: safe.
class GlooMesh {
 public:
  // Connects to all peers. REQUIRES: 0 <= rank < world_size, world_size >= 2.
  // Errors: kDeadlineExceeded (a rank did not come), kInvalidArgument (no such
  // interface or host), kUnavailable (a connection failed), the store's.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(
      RendezvousStore& store, int rank, int world_size,
      const GlooAddress& address, absl::Time deadline);

  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Memory for sends to, or receives from, any peer. Throws Gloo's exceptions,
  // as do the buffer's methods.
  std::unique_ptr<gloo::transport::UnboundBuffer> MakeBuffer(void* data,
                                                             size_t bytes);

  // Closes every connection: peers see it at once, and after it returns no
  // thread of Gloo touches a buffer's memory. Buffers' waits are not woken.
  // Idempotent; takes up to 10 ms a peer.
  void Close();

 private:
  GlooMesh(std::shared_ptr<gloo::transport::Device> device,
           std::shared_ptr<gloo::transport::Context> context);

  // Order matters: connections go before the device that polls them.
  const std::shared_ptr<gloo::transport::Device> device_;
  const std::shared_ptr<gloo::transport::Context> context_;
};

// What Gloo said, less the place in its source, as kUnavailable.
absl::Status GlooFailure(const std::exception& error);

// Calls `body`, which may throw Gloo's exceptions, and returns what they said
// as kUnavailable.
template <typename Body>
absl::Status CatchGloo(const Body& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return GlooFailure(error);
  }
}

}  // namespace ithaca

#endif  // ITHACA_WORKER_GLOO_MESH_H_
