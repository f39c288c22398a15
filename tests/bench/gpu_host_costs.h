#ifndef ITHACA_TESTS_BENCH_GPU_HOST_COSTS_H_
#define ITHACA_TESTS_BENCH_GPU_HOST_COSTS_H_

#include <functional>

#include "core/sequence_parallel_plan.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/cuda_device.h"

namespace ithaca::bench {

// Where the host's time for the launch of a call goes: the parts of a rank's
// path one by one, with the device busy so that none can wait for it.
// `order_only` and `nccl` are loopbacks of the two kinds.
void MeasureHostCosts(
    CudaDevice& device, AttentionKernels& kernels,
    const SequenceParallelPlan& plan, Communicator& order_only,
    Communicator& nccl, int repeats,
    const std::function<void(const char* what, double seconds)>& record);

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_GPU_HOST_COSTS_H_
