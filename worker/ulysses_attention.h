#ifndef ITHACA_WORKER_ULYSSES_ATTENTION_H_
#define ITHACA_WORKER_ULYSSES_ATTENTION_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/sequence_parallel_plan.h"
#include "worker/arena.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/device.h"
#include "worker/ulysses_call.h"

// One rank's part of one call: pack, exchange, attend, exchange back, unpack.
//
// Inside, tokens lie as [image S][valid text V[b]] whatever the caller's order
// is: what is kept is then one contiguous run of rows for each batch element,
// nothing is masked, and the caller's order cannot change a bit of the result.

namespace ithaca {

// What a rank's time goes to. A rank itself knows all but kGather, which is the
// coordinator's; its kScatter is the wait until every rank has its inputs and
// all agree on the call. The text's exchange counts as the outputs'.
enum class Stage : uint8_t {
  kScatter,
  kPack,
  kAllToAll,
  kUnpack,
  kAttention,
  kOutputPack,
  kOutputAllToAll,
  kOutputUnpack,
  kGather,
};
inline constexpr int kNumStages = 9;

// The name in ExecutionReport, in code and in the metrics
// ("output_all_to_all").
std::string_view Name(Stage stage);

struct RankReport {
  // Seconds the rank's compute order spent in, or waiting for, each stage.
  std::array<double, kNumStages> stage_seconds = {};
  int64_t communication_bytes = 0;  // sent to other ranks
  AttentionKernelKind kernel = AttentionKernelKind::kMath;
};

class UlyssesAttention {
 public:
  // All outlive this. `arena` is this object's alone during Run.
  UlyssesAttention(Device* device, Communicator* communicator,
                   AttentionKernels* kernels, Arena* arena);

  // Runs the plan's call as rank communicator->rank(). Returns with the
  // outputs written (after a device synchronize), plan.NumExchanges() exchanges
  // later. Whatever a rank lacks for the call (memory, the kernel) it says
  // before the first of them.
  // Errors: from Agree (see Communicator), before any exchange; kUnavailable
  // or kInternal (the group is lost, and this rank has aborted it).
  // Thread-safety: one call at a time.
  absl::StatusOr<RankReport> Run(const SequenceParallelPlan& plan,
                                 uint64_t call_number, const RankInputs& inputs,
                                 const RankOutputs& outputs);

 private:
  Device* const device_;
  Communicator* const communicator_;
  AttentionKernels* const kernels_;
  Arena* const arena_;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_ATTENTION_H_
