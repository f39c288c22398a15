#ifndef ITHACA_WORKER_ULYSSES_TEST_CALLER_H_
#define ITHACA_WORKER_ULYSSES_TEST_CALLER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "tests/oracle/tensor_data.h"
#include "worker/ulysses_attention.h"

namespace ithaca {

// Makes whole calls to a group: whole tensors go in, as a caller has them, and
// whole outputs come out.
class UlyssesTestCaller {
 public:
  virtual ~UlyssesTestCaller() = default;

  virtual int world_size() const = 0;
  // Kernels that run some calls on these ranks.
  virtual std::vector<AttentionKernelKind> kernels() = 0;

  // One call; the output [B, Nq, Hq, D] in the caller's token order. Fails with
  // the lowest failing rank's status. `reports`, if set, by rank.
  virtual absl::StatusOr<std::string> Run(
      const AttentionShape& shape, const AttentionOptions& options,
      const oracle::CallInputs& inputs,
      std::vector<RankReport>* reports = nullptr) = 0;
};

// 1 / sqrt(D) as scale; NATIVE, fused, MATH.
AttentionOptions DefaultOptions(const AttentionShape& shape);

// What kind of group, is a matter of what a test links: ranks on threads, on
// the CPU or on one GPU, or ranks in processes, on GPUs over NCCL.
std::unique_ptr<UlyssesTestCaller> MakeUlyssesTestCaller(int world_size);

}  // namespace ithaca

#endif  // ITHACA_WORKER_ULYSSES_TEST_CALLER_H_
