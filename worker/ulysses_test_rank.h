#ifndef ITHACA_WORKER_ULYSSES_TEST_RANK_H_
#define ITHACA_WORKER_ULYSSES_TEST_RANK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/sequence_parallel_plan.h"
#include "tests/oracle/tensor_data.h"
#include "worker/arena.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/device.h"
#include "worker/ulysses_attention.h"

namespace ithaca {

// What one rank is given of a test's call, and what it gives back, in host
// memory: rows of its image tokens and of all text.
struct RankTensors {
  std::string image_query, image_key, image_value;
  std::string text_query, text_key, text_value;
  // Full of bytes that no right answer has, so that what is not written shows.
  std::string image_output, text_output;
};

RankTensors CutRankTensors(const SequenceParallelPlan& plan, int rank,
                           const oracle::CallInputs& inputs);

// The outputs of all ranks, by rank, as [B, Nq, Hq, D] in the caller's token
// order. kInternal: the ranks' text outputs differ.
absl::StatusOr<std::string> JoinRankOutputs(
    const SequenceParallelPlan& plan, const std::vector<RankTensors>& ranks);

// One rank of a group. It keeps its arenas from call to call, as workers do.
struct UlyssesTestRank {
  UlyssesTestRank(std::unique_ptr<Device> on,
                  std::unique_ptr<Device> tensors_on)
      : device(std::move(on)),
        arena(device.get()),
        tensors_device(std::move(tensors_on)),
        tensors(tensors_device.get()) {}

  // Takes `call`'s inputs to the device, runs, and brings the outputs back.
  absl::StatusOr<RankReport> Run(const SequenceParallelPlan& plan,
                                 uint64_t call_number, RankTensors& call);

  std::unique_ptr<Device> device;
  Arena arena;
  // Inputs and outputs are none of the business of a device that fails.
  std::unique_ptr<Device> tensors_device;
  Arena tensors;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<AttentionKernels> kernels;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_TEST_RANK_H_
