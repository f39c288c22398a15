#include <stdlib.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "worker/cpu_rank_device.h"
#include "worker/cuda_device.h"
#include "worker/gloo_communicator.h"
#include "worker/nccl_communicator.h"
#include "worker/rank_device.h"
#include "worker/torch_cuda_attention_kernels.h"

// OpenRankDevice of a program that was built with --config=cuda.

namespace ithaca {

namespace {

// A GPU, NCCL, and Gloo for the votes.
class CudaRankDevice : public RankDevice {
 public:
  CudaRankDevice(const RankDeviceOptions& options,
                 std::unique_ptr<CudaDevice> device)
      : address_(options.address),
        device_(std::move(device)),
        kernels_(device_.get()) {}

  Device* device() override { return device_.get(); }
  AttentionKernels* kernels() override { return &kernels_; }
  std::string uuid() const override { return device_->uuid(); }

  absl::StatusOr<std::unique_ptr<Communicator>> FormGroup(
      RendezvousStore& store, int rank, int world_size,
      absl::Duration formation_timeout,
      absl::Duration collective_timeout) override {
    const absl::Time deadline = absl::Now() + formation_timeout;
    auto host_channel = GlooCommunicator::Form(
        store, rank, world_size,
        {address_, formation_timeout, collective_timeout});
    if (!host_channel.ok()) return host_channel.status();
    auto communicator = NcclCommunicator::Connect(device_.get(), store,
                                                  *std::move(host_channel),
                                                  deadline, collective_timeout);
    if (!communicator.ok()) return communicator.status();
    return std::unique_ptr<Communicator>(*std::move(communicator));
  }

 private:
  const GlooAddress address_;
  const std::unique_ptr<CudaDevice> device_;
  TorchCudaAttentionKernels kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankDevice>> OpenRankDevice(
    const RankDeviceOptions& options) {
  if (options.name == "cpu") return OpenCpuRankDevice(options);
  absl::string_view ordinal_text = options.name;
  int ordinal = 0;
  if (!absl::ConsumePrefix(&ordinal_text, "cuda:") ||
      !absl::SimpleAtoi(ordinal_text, &ordinal)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no device \"", options.name, "\": it is cpu or cuda:N"));
  }
  // NCCL reads it once, when the first communicator of the process is made.
  if (!options.nccl_host_id.empty()) {
    setenv("NCCL_HOSTID", options.nccl_host_id.c_str(), /*overwrite=*/1);
  }
  if (auto status = NcclCommunicator::CheckVersion(); !status.ok()) {
    return status;
  }
  auto device = CudaDevice::Open(ordinal);
  if (!device.ok()) return device.status();
  return std::make_unique<CudaRankDevice>(options, *std::move(device));
}

}  // namespace ithaca
