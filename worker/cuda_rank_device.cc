#include <cuda_runtime_api.h>
#include <stdlib.h>

#include <memory>
#include <optional>
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
#include "worker/cpu_regions.h"
#include "worker/cuda_device.h"
#include "worker/cuda_pinned_memory.h"
#include "worker/cuda_regions.h"
#include "worker/cuda_uuid.h"
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

// Of "cuda:N".
std::optional<int> OrdinalOf(absl::string_view name) {
  int ordinal = 0;
  if (!absl::ConsumePrefix(&name, "cuda:") ||
      !absl::SimpleAtoi(name, &ordinal)) {
    return std::nullopt;
  }
  return ordinal;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankDevice>> OpenRankDevice(
    const RankDeviceOptions& options) {
  if (options.name == "cpu") return OpenCpuRankDevice(options);
  const std::optional<int> ordinal = OrdinalOf(options.name);
  if (!ordinal.has_value()) {
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
  auto device = CudaDevice::Open(*ordinal);
  if (!device.ok()) return device.status();
  return std::make_unique<CudaRankDevice>(options, *std::move(device));
}

std::shared_ptr<PinnedMemory> MakePinnedMemory(
    const RankDeviceOptions& options) {
  const std::optional<int> ordinal = OrdinalOf(options.name);
  return ordinal.has_value() ? MakeCudaPinnedMemory(*ordinal) : nullptr;
}

std::unique_ptr<RegionOpener> MakeRegionOpener(
    const RankDeviceOptions& options) {
  const std::optional<int> ordinal = OrdinalOf(options.name);
  if (!ordinal.has_value()) return MakeCpuRegionOpener();
  cudaDeviceProp properties;
  const bool known =
      cudaGetDeviceProperties(&properties, *ordinal) == cudaSuccess;
  return MakeCudaRegionOpener(
      *ordinal, known ? CudaUuidString(properties.uuid) : std::string());
}

}  // namespace ithaca
