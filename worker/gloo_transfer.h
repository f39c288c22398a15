#ifndef ITHACA_WORKER_GLOO_TRANSFER_H_
#define ITHACA_WORKER_GLOO_TRANSFER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "gloo/transport/unbound_buffer.h"
#include "worker/communicator.h"
#include "worker/gloo_mesh.h"

namespace ithaca {

// One exchange of a GlooCommunicator in flight.
//
// A peer's segments travel as one message each, or, when there are several of
// few bytes in all, copied together as one: a message costs more than the copy.
// Sender and receiver know the same sizes, so they choose alike.
//
// Thread-safety: Wake may come from any thread; the rest belongs to one.
class GlooTransfer {
 public:
  // A peer's segments of up to this many bytes in all become one message.
  static constexpr int64_t kJoinedBytes = 64 << 10;
  // Messages with one peer have slots first_slot + 0, 1, ... below this.
  static constexpr uint64_t kSlots = uint64_t{1} << 24;

  // Throws Gloo's exceptions.
  GlooTransfer(GlooMesh& mesh, int rank, int world_size,
               absl::Span<const SendSegment> sends,
               absl::Span<const RecvSegment> recvs);

  // Announces the receives, then starts the sends. Throws Gloo's exceptions.
  void Post(uint64_t first_slot);

  // Blocks until all is received and sent. Errors: kUnavailable; then the mesh
  // must be closed before this object or the segments' memory goes.
  absl::Status Wait(absl::Duration limit);

  // Makes Wait, now or later, return kUnavailable.
  void Wake();

 private:
  struct Message {
    int peer = 0;
    uint64_t slot = 0;  // from first_slot
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    // Of joined segments: their bytes, and where received ones go.
    std::vector<char> joined;
    std::vector<RecvSegment> parts;
  };

  void AddSends(GlooMesh& mesh, int peer, absl::Span<const SendSegment> sends);
  void AddRecvs(GlooMesh& mesh, int peer, absl::Span<const RecvSegment> recvs);

  std::vector<Message> sends_;
  std::vector<Message> recvs_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_GLOO_TRANSFER_H_
