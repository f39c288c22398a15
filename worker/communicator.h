#ifndef ITHACA_WORKER_COMMUNICATOR_H_
#define ITHACA_WORKER_COMMUNICATOR_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

// One rank's end of a sequence-parallel group.
//
// Thread-safety: Agree, StartExchange and WaitExchange belong to the one thread
// that runs calls; Abort may come from any thread at any time.
//
// Every rank makes the same sequence of calls. After any error from an
// exchange the group is lost: Abort() it and form a new one; nothing else on
// this object is valid then. Agree says itself whether the group survived.

namespace ithaca {

struct SendSegment {
  int peer = 0;  // not the own rank
  const void* data = nullptr;
  int64_t bytes = 0;
};

struct RecvSegment {
  int peer = 0;  // not the own rank
  void* data = nullptr;
  int64_t bytes = 0;
};

using ExchangeId = uint64_t;

// One rank's word before a call's first exchange.
struct CallVote {
  uint64_t call_number = 0;
  uint64_t plan_fingerprint = 0;
  // kOk, or why this rank cannot run the call (see IsVoted); then no rank runs
  // it.
  absl::StatusCode code = absl::StatusCode::kOk;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // Compares votes among all ranks, on the host. OK: all ranks run this very
  // call. An error marked as a Refusal: some rank cannot; every rank returns
  // the same code, the lowest such rank's, and the group is intact. Else,
  // kInternal: call number or plan differ; kUnavailable: a peer is gone or the
  // time limit passed: the group is lost.
  virtual absl::Status Agree(const CallVote& vote) = 0;

  // Starts one exchange. Between each ordered pair of ranks the k-th segment
  // sent matches the k-th received, and their sizes are equal; segments of 0
  // bytes are skipped on both sides. Data is read, and memory written, after
  // the work the device was given before this call; both stay untouched by
  // the caller until WaitExchange. Exchanges complete in the order of start.
  // Errors: kUnavailable (the group is lost).
  virtual absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> sends,
      absl::Span<const RecvSegment> recvs) = 0;

  // Work given to the device after this sees the received data and may reuse
  // the sent memory. On CPU it blocks; on a GPU it orders streams.
  // REQUIRES: each id waited for once, in the order of start.
  // Errors: kUnavailable (a peer is gone, an abort, or the time limit passed;
  // the group is lost).
  virtual absl::Status WaitExchange(ExchangeId id) = 0;

  // Ends every exchange, pending and later, with kUnavailable, within 5 s.
  // Idempotent.
  virtual void Abort() = 0;

  // Exchanges started since construction; votes are not exchanges.
  virtual uint64_t num_exchanges() const = 0;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_COMMUNICATOR_H_
