#include "worker/cpu_rank_device.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/cpu_device.h"
#include "worker/gloo_communicator.h"
#include "worker/torch_attention_kernels.h"

namespace ithaca {

namespace {

class CpuRankDevice : public RankDevice {
 public:
  explicit CpuRankDevice(const RankDeviceOptions& options)
      : address_(options.address),
        kernels_(MakeTorchAttentionKernels({options.num_threads})) {}

  Device* device() override { return &device_; }
  AttentionKernels* kernels() override { return kernels_.get(); }
  std::string uuid() const override { return ""; }

  absl::StatusOr<std::unique_ptr<Communicator>> FormGroup(
      RendezvousStore& store, int rank, int world_size,
      absl::Duration formation_timeout,
      absl::Duration collective_timeout) override {
    auto communicator = GlooCommunicator::Form(
        store, rank, world_size,
        {address_, formation_timeout, collective_timeout});
    if (!communicator.ok()) return communicator.status();
    return std::unique_ptr<Communicator>(*std::move(communicator));
  }

 private:
  const GlooAddress address_;
  CpuDevice device_;
  const std::unique_ptr<AttentionKernels> kernels_;
};

}  // namespace

std::unique_ptr<RankDevice> OpenCpuRankDevice(
    const RankDeviceOptions& options) {
  return std::make_unique<CpuRankDevice>(options);
}

}  // namespace ithaca
