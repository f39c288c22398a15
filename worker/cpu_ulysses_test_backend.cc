#include <memory>
#include <vector>

#include "worker/cpu_device.h"
#include "worker/torch_attention_kernels.h"
#include "worker/ulysses_test_backend.h"

namespace ithaca {

namespace {

class CpuBackend : public UlyssesTestBackend {
 public:
  std::unique_ptr<Device> MakeDevice() override {
    return std::make_unique<CpuDevice>();
  }
  std::unique_ptr<AttentionKernels> MakeKernels(Device* /*device*/) override {
    return MakeTorchAttentionKernels({/*num_threads=*/1});
  }
  InProcessGroup::CopyMemory CopyMemory() override { return nullptr; }
  std::unique_ptr<Communicator> Order(
      std::unique_ptr<Communicator> communicator, Device* /*device*/) override {
    return communicator;
  }
  std::vector<AttentionKernelKind> Kernels() override {
    return {AttentionKernelKind::kMath, AttentionKernelKind::kFlash};
  }
};

}  // namespace

std::unique_ptr<UlyssesTestBackend> MakeUlyssesTestBackend() {
  return std::make_unique<CpuBackend>();
}

}  // namespace ithaca
