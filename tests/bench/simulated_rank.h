#ifndef ITHACA_TESTS_BENCH_SIMULATED_RANK_H_
#define ITHACA_TESTS_BENCH_SIMULATED_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/attention_call.h"
#include "core/sequence_parallel_plan.h"
#include "tests/bench/gpu_measure.h"
#include "worker/arena.h"
#include "worker/attention_kernel.h"
#include "worker/communicator.h"
#include "worker/cuda_device.h"
#include "worker/device.h"
#include "worker/ulysses_attention.h"

namespace ithaca::bench {

// A CUDA device that counts what a call in the steady state must not do, notes
// when the host had given it all its work, and keeps the layout work to be done
// again.
class WatchedDevice : public Device {
 public:
  explicit WatchedDevice(CudaDevice* device) : device_(device) {}

  int64_t allocations() const { return allocations_; }
  int64_t synchronizations() const { return synchronizations_; }
  // Of the last Synchronize: when the host came to it, on the steady clock.
  double synchronize_entered() const { return synchronize_entered_; }

  std::string name() const override { return device_->name(); }
  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    ++allocations_;
    return device_->Allocate(bytes);
  }
  void Free(void* memory) override { device_->Free(memory); }
  absl::Status CopyFromHost(void* dst, const void* src,
                            int64_t bytes) override {
    return device_->CopyFromHost(dst, src, bytes);
  }
  absl::Status CopyToHost(void* dst, const void* src, int64_t bytes) override {
    return device_->CopyToHost(dst, src, bytes);
  }
  absl::Status Copy(void* dst, const void* src, int64_t bytes) override {
    return device_->Copy(dst, src, bytes);
  }
  absl::Status Zero(void* dst, int64_t bytes) override {
    return device_->Zero(dst, bytes);
  }
  absl::Status CopyHeads(const kernels::LayoutParams& params,
                         absl::Span<const kernels::CopyJob> jobs) override {
    Keep(&CudaDevice::CopyHeads, params, jobs);
    return device_->CopyHeads(params, jobs);
  }
  absl::Status QuantizeHeads(
      const kernels::LayoutParams& params,
      absl::Span<const kernels::QuantizeJob> jobs) override {
    Keep(&CudaDevice::QuantizeHeads, params, jobs);
    return device_->QuantizeHeads(params, jobs);
  }
  absl::Status DequantizeHeads(
      const kernels::LayoutParams& params,
      absl::Span<const kernels::DequantizeJob> jobs) override {
    Keep(&CudaDevice::DequantizeHeads, params, jobs);
    return device_->DequantizeHeads(params, jobs);
  }
  // From here on, until the next KeepLayoutWork(false), layout work is kept;
  // what was kept before is forgotten.
  void KeepLayoutWork(bool keep) {
    keep_ = keep;
    if (keep) kept_.clear();
  }
  // Queues the kept work once more, on the same memory.
  void RepeatLayoutWork() const {
    for (const auto& work : kept_) work();
  }
  DeviceMark Mark() override { return device_->Mark(); }
  absl::Status Synchronize() override;
  double SecondsBetween(DeviceMark from, DeviceMark to) override {
    return device_->SecondsBetween(from, to);
  }

 private:
  template <typename Job>
  void Keep(absl::Status (CudaDevice::*launch)(const kernels::LayoutParams&,
                                               absl::Span<const Job>),
            const kernels::LayoutParams& params, absl::Span<const Job> jobs) {
    if (!keep_ || jobs.empty()) return;
    kept_.emplace_back([this, launch, params,
                        jobs = std::vector<Job>(jobs.begin(), jobs.end())] {
      static_cast<void>((device_->*launch)(params, jobs));
    });
  }

  CudaDevice* const device_;
  bool keep_ = false;
  std::vector<std::function<void()>> kept_;
  int64_t allocations_ = 0;
  int64_t synchronizations_ = 0;
  double synchronize_entered_ = 0;
};

// Seconds on the steady clock.
double Now();

// One measured call.
struct CallTimes {
  RankReport report;
  double launch_seconds = 0;  // until the host had given all work
  double wall_seconds = 0;
  int64_t allocations = 0;
  int64_t synchronizations = 0;

  double Stage(ithaca::Stage stage) const {
    return report.stage_seconds[static_cast<size_t>(stage)];
  }
  // Pack, unpack, and the same of the output.
  double LayoutSeconds() const;
};

// Rank 0's part of calls in a group whose other ranks are not there.
class SimulatedRank {
 public:
  // All outlive this.
  SimulatedRank(CudaDevice* device, AttentionKernels* kernels,
                Communicator* communicator);

  // Exits the process on an error. `busy_bytes` of memory are written first,
  // so that the device is not waiting for the host when the call's work comes:
  // then stage times are those of the device alone.
  CallTimes Run(const AttentionShape& shape, const AttentionOptions& options,
                int64_t busy_bytes = 0);
  // Fieldwise medians of `repeats` calls after `warm_ups`; allocations and
  // synchronizations are the most of any call.
  CallTimes Median(const AttentionShape& shape, const AttentionOptions& options,
                   int warm_ups, int repeats, int64_t busy_bytes = 0);

  // Runs a call and keeps its layout work, for RepeatLayoutWork: alone, without
  // what a call has between its stages.
  void KeepLayoutWork(const AttentionShape& shape,
                      const AttentionOptions& options);
  void RepeatLayoutWork() const { device_.RepeatLayoutWork(); }

  SequenceParallelPlan Plan(const AttentionShape& shape,
                            const AttentionOptions& options) const;

 private:
  WatchedDevice device_;
  Communicator* const communicator_;
  Arena arena_;
  UlyssesAttention attention_;
  uint64_t call_number_ = 0;
  // Those of the last shape.
  AttentionShape shape_;
  std::vector<std::unique_ptr<RandomTensor>> tensors_;
  std::unique_ptr<RandomTensor> busy_;
  int64_t busy_bytes_ = 0;
};

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_SIMULATED_RANK_H_
