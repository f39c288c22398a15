#ifndef ITHACA_WORKER_ULYSSES_ATTENTION_H_
#define ITHACA_WORKER_ULYSSES_ATTENTION_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/sequence_parallel_plan.h"
#include "worker/arena.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/device.h"

// One rank's part of one call: pack, exchange, attend, exchange back, unpack.
//
// Inside, tokens lie as [image S][valid text V[b]] whatever the caller's order
// is: what is kept is then one contiguous run of rows for each batch element,
// nothing is masked, and the caller's order cannot change a bit of the result.

namespace ithaca {

// A rank's inputs, on its device, dense, the call's dtype.
struct RankInputs {
  const void* image_query = nullptr;  // [B, S_r, Hq, D]
  const void* image_key = nullptr;    // [B, S_r, Hkv, D]
  const void* image_value = nullptr;  // [B, S_r, Hkv, D]
  const void* text_query =
      nullptr;                     // [B, T, Hq, D]; none if image_queries_only
  const void* text_key = nullptr;  // [B, T, Hkv, D]
  const void* text_value = nullptr;  // [B, T, Hkv, D]
};

// A rank's outputs, on its device, dense, written whole.
struct RankOutputs {
  void* image = nullptr;  // [B, S_r, Hq, D]
  void* text = nullptr;   // [B, T, Hq, D], the same on every rank; or none
};

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
  // outputs written (after a device synchronize).
  // Errors: from Agree (see Communicator), before any exchange; kUnavailable
  // (the group is lost: Abort it); kInternal.
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
