#ifndef ITHACA_TESTS_BENCH_PATH_RANK_H_
#define ITHACA_TESTS_BENCH_PATH_RANK_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "tests/bench/rank_group.h"
#include "tests/bench/recording_communicator.h"
#include "worker/arena.h"
#include "worker/torch_cuda_attention_kernels.h"
#include "worker/ulysses_attention.h"

namespace ithaca::bench {

// One call of one rank.
struct PathTime {
  RankReport report;
  // From the vote, at which all ranks meet, to the last unpack.
  double path_seconds = 0;
  double wall_seconds = 0;  // of Run: the vote included
};

// A rank of real calls: UlyssesAttention over the group's communicator, on
// tensors of standard normal numbers. Any rank can make any other's tensors
// again, and so can tell whether its own output is right.
class PathRank {
 public:
  // `group` outlives this.
  explicit PathRank(RankGroup* group);

  // Tensors for calls of this shape take the place of the last one's.
  void SetShape(const AttentionShape& shape);

  // The plan that workers on GPUs make.
  SequenceParallelPlan Plan(const AttentionOptions& options) const;

  PathTime Run(const SequenceParallelPlan& plan);

  // The last call's output of the first and the last head, for this rank's
  // rows, against attention over those heads' whole keys and values on this
  // GPU: the larger relative L2 distance.
  double OutputError(const SequenceParallelPlan& plan);

  // Median seconds of attention alone over this rank's heads.
  double AttentionSeconds(const SequenceParallelPlan& plan, int repeats);

  // The segments of the last call's exchanges.
  const std::vector<RecordedExchange>& exchanges() const {
    return communicator_.exchanges();
  }

 private:
  // Which rank's image rows, or the text's, which all ranks hold.
  static constexpr int kText = -1;
  enum Role { kQuery, kKey, kValue };

  // [rows, Hq or Hkv, D] of one tensor, the same whoever makes it.
  at::Tensor Make(const SequenceParallelPlan& plan, Role role, int part) const;
  // [S + V, D] of one head, and [own rows + V, D].
  at::Tensor WholeHead(const SequenceParallelPlan& plan, Role role,
                       int64_t head) const;
  at::Tensor OwnRows(int64_t head, const at::Tensor& image,
                     const at::Tensor& text) const;

  RankGroup& group_;
  TorchCudaAttentionKernels kernels_;
  RecordingCommunicator communicator_;
  Arena arena_;
  UlyssesAttention attention_;
  AttentionShape shape_;
  at::Tensor image_[3], text_[3];  // by role
  at::Tensor image_output_, text_output_;
};

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_PATH_RANK_H_
