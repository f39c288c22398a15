#include "tests/bench/gpu_host_costs.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/attention_call.h"
#include "core/plan_policy.h"
#include "kernels/layout.h"
#include "tests/bench/gpu_measure.h"
#include "worker/ulysses_layout.h"

namespace ithaca::bench {

namespace {

// FLUX over 8 ranks: tokens and heads that a rank attends.
constexpr int64_t kTokens = 4608;
constexpr int64_t kHeads = 3;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kRow = kHeads * kHeadDim;
constexpr int64_t kSegmentBytes = 65536;

}  // namespace

void MeasureHostCosts(
    CudaDevice& device, AttentionKernels& kernels,
    const SequenceParallelPlan& plan, Communicator& order_only,
    Communicator& nccl, int repeats,
    const std::function<void(const char* what, double seconds)>& record) {
  const auto measure = [&](const char* what,
                           const std::function<void()>& work) {
    record(what, MedianHostSeconds(device, work, repeats));
  };
  measure("a plan", [&] {
    static_cast<void>(MakeSequenceParallelPlan(
        plan.shape, plan.options, plan.world_size,
        PlanPolicyFor("cuda:0", plan.shape, plan.world_size)));
  });
  measure("its fingerprint", [&] { plan.Fingerprint(); });
  measure("its layout", [&] { MakeUlyssesLayout(plan, 0); });
  measure("choosing the device",
          [&] { static_cast<void>(device.MakeCurrent()); });
  measure("a mark", [&] { device.Mark(); });
  measure("memory for attention", [&] {
    static_cast<void>(kernels.Reserve(plan, 0, AttentionKernelKind::kCudnn));
  });

  const RandomTensor rows(kTokens * kRow);
  const RandomTensor out(kTokens * kRow);
  AttentionArguments arguments;
  arguments.dtype = DataType::kBFloat16;
  arguments.head_dim = kHeadDim;
  arguments.softmax_scale = plan.options.softmax_scale;
  arguments.query = {rows.data(), kTokens, kHeads, kRow, kHeadDim};
  arguments.key = arguments.query;
  arguments.value = arguments.query;
  arguments.kernel = AttentionKernelKind::kCudnn;
  measure("CUDNN", [&] { static_cast<void>(kernels.Attend(arguments)); });
  arguments.kernel = AttentionKernelKind::kFlash;
  measure("FLASH", [&] { static_cast<void>(kernels.Attend(arguments)); });

  kernels::LayoutParams params;
  params.dtype = DataType::kBFloat16;
  params.head_dim = kHeadDim;
  const kernels::CopyJob job = {
      {rows.data(), kRow, 0}, {out.data(), kRow, 0}, 1, kTokens, kHeads};
  const auto copy = [&](size_t blocks) {
    const std::vector<kernels::CopyJob> jobs(blocks, job);
    return [&device, &params, jobs] {
      static_cast<void>(device.CopyHeads(params, jobs));
    };
  };
  measure("a copy of 1 block", copy(1));
  measure("a copy of 24 blocks", copy(24));

  std::vector<SendSegment> sends;
  std::vector<RecvSegment> recvs;
  for (int peer = 1; peer < plan.world_size; ++peer) {
    sends.push_back({peer, rows.data(), kSegmentBytes});
    recvs.push_back({peer, out.data(), kSegmentBytes});
  }
  const auto exchange = [&](Communicator& communicator) {
    return [&communicator, &sends, &recvs] {
      const auto id = communicator.StartExchange(sends, recvs);
      if (id.ok()) static_cast<void>(communicator.WaitExchange(*id));
    };
  };
  measure("an exchange, NCCL left out", exchange(order_only));
  measure("an exchange of 64 KiB a peer, NCCL to itself", exchange(nccl));
}

}  // namespace ithaca::bench
