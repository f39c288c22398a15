#ifndef ITHACA_WORKER_RANK_EXECUTOR_H_
#define ITHACA_WORKER_RANK_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "worker/arena.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/device.h"
#include "worker/host_buffer_pool.h"
#include "worker/ulysses_attention.h"

// One rank's part of one call from host bytes to host bytes: scatter (onto the
// device), attention over the group, gather (off the device).

namespace ithaca {

struct RankCall {
  uint64_t number = 0;
  uint64_t plan_fingerprint = 0;  // the coordinator's plan
  AttentionShape shape;
  AttentionOptions options;
  bool return_text_output = false;
  // Why this rank cannot run the call, if so: it then only votes.
  absl::Status refusal;
  // Dense, back to back, in pieces cut anywhere: image query [B, S_r, Hq, D],
  // image key and value [B, S_r, Hkv, D], text query [B, T, Hq, D] (none with
  // image_queries_only), text key and value [B, T, Hkv, D].
  std::vector<std::string_view> tensors;
  // Keeps them; let go as soon as they are on the device.
  std::shared_ptr<const void> tensors_owner;
};

struct RankResult {
  // Image output [B, S_r, Hq, D], then the text output [B, T, Hq, D] where it
  // was asked for and there is one: the first `output_bytes` of `output`.
  std::shared_ptr<const HostBuffer> output;
  int64_t output_bytes = 0;
  RankReport report;
  double total_seconds = 0;  // from the first byte taken to the last returned
};

// Thread-safety: one call at a time.
class RankExecutor {
 public:
  // All outlive this.
  RankExecutor(Device* device, Communicator* communicator,
               AttentionKernels* kernels, HostBufferPool* output_buffers);

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
  // memory on device or host); kInternal (intact: another number of bytes than
  // the call takes; lost: another plan than the coordinator's).
  absl::StatusOr<RankResult> Run(RankCall call);

 private:
  struct Inputs;

  absl::StatusOr<SequenceParallelPlan> MakePlan(
      const AttentionShape& shape, const AttentionOptions& options) const;
  absl::StatusOr<SequenceParallelPlan> Plan(const RankCall& call) const;
  // Room for inputs and outputs on the device, and for the result.
  absl::Status Prepare(const RankCall& call, const SequenceParallelPlan& plan,
                       RankInputs* inputs, RankOutputs* outputs,
                       std::shared_ptr<HostBuffer>* result);
  absl::Status Scatter(const RankCall& call, const SequenceParallelPlan& plan,
                       const RankInputs& inputs);
  absl::Status Gather(const SequenceParallelPlan& plan, bool with_text,
                      const RankOutputs& outputs, HostBuffer* result);
  absl::Status Check(const RankCall& call,
                     const SequenceParallelPlan& plan) const;
  // Votes against the call; returns what it ends with.
  absl::Status Refuse(const RankCall& call, const absl::Status& why);

  Device* const device_;
  Communicator* const communicator_;
  AttentionKernels* const kernels_;
  HostBufferPool* const output_buffers_;
  Arena tensors_;    // inputs and outputs
  Arena workspace_;  // attention's own
  UlyssesAttention attention_;
  absl::Duration vote_delay_ = absl::ZeroDuration();
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_RANK_EXECUTOR_H_
