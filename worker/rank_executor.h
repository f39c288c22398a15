#ifndef ITHACA_WORKER_RANK_EXECUTOR_H_
#define ITHACA_WORKER_RANK_EXECUTOR_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "worker/arena.h"
#include "worker/attention_kernel.h"
#include "worker/call_tensors.h"
#include "worker/communicator.h"
#include "worker/device.h"
#include "worker/host_buffer_pool.h"
#include "worker/rank_call.h"
#include "worker/region_table.h"
#include "worker/ulysses_attention.h"

// One rank's part of one call from bytes to bytes: scatter (onto the device),
// attention over the group, gather (off the device).

namespace ithaca {

// Thread-safety: one call at a time.
class RankExecutor {
 public:
  // All outlive this. regions: null where calls have none.
  RankExecutor(Device* device, Communicator* communicator,
               AttentionKernels* kernels, HostBufferPool* output_buffers,
               RegionTable* regions);

  // For tests of faults: makes this rank late for its votes.
  void DelayVotes(absl::Duration delay) { vote_delay_ = delay; }

  // Does this rank's own work of such a call, on whatever is in memory and
  // without the others, so that the first call has all it needs: memory, and
  // kernels and plans made for the shape. Errors: those of a call.
  absl::Status WarmUp(const AttentionShape& shape,
                      const AttentionOptions& options);

  // What this rank finds wrong before the first exchange it tells the others
  // by its vote, so that none begins what another will not.
  // Errors, marked as a Refusal where the group is intact: those of
  // UlyssesAttention::Run; the call's own refusal; kResourceExhausted (no
  // memory on device or host); CallTensors', before the first exchange and, of
  // an output's region, after the last; kInternal (intact: another number of
  // bytes than the call takes; lost: another plan than the coordinator's).
  absl::StatusOr<RankResult> Run(RankCall call);

 private:
  absl::StatusOr<SequenceParallelPlan> MakePlan(
      const AttentionShape& shape, const AttentionOptions& options) const;
  absl::StatusOr<SequenceParallelPlan> Plan(const RankCall& call) const;
  // Why the call cannot run as it was sent, if so.
  absl::Status Check(const RankCall& call,
                     const SequenceParallelPlan& plan) const;
  // Gives the tensors their room on the device; returns that of what the
  // response carries.
  absl::StatusOr<std::shared_ptr<HostBuffer>> Prepare(const RankCall& call,
                                                      CallTensors* tensors);
  // Votes against the call; returns what it ends with: the group is intact,
  // or lost whatever the others say.
  absl::Status Refuse(const RankCall& call, const absl::Status& why);
  absl::Status Fail(const RankCall& call, const absl::Status& why);
  // Refuses what a rank may say in its vote, fails for the rest.
  absl::Status RefuseOrFail(const RankCall& call, const absl::Status& why);
  // The refusal of a call whose inputs may still be on their way from memory
  // that is let go: waits for them first.
  absl::Status AfterCopies(const absl::Status& refused);

  Device* const device_;
  Communicator* const communicator_;
  AttentionKernels* const kernels_;
  HostBufferPool* const output_buffers_;
  RegionTable* const regions_;
  Arena tensors_;    // inputs and outputs
  Arena workspace_;  // attention's own
  UlyssesAttention attention_;
  absl::Duration vote_delay_ = absl::ZeroDuration();
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_EXECUTOR_H_
