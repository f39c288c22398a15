#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/cuda_device.h"
#include "worker/cuda_status.h"
#include "worker/torch_cuda_attention_kernels.h"
#include "worker/ulysses_test_backend.h"

namespace ithaca {

namespace {

// The in-process group copies on the host's word; the device works in order of
// its stream. So the host waits for the stream before it gives memory away.
class OrderedCommunicator : public Communicator {
 public:
  OrderedCommunicator(std::unique_ptr<Communicator> inner, CudaDevice* device)
      : inner_(std::move(inner)), device_(device) {
    cudaEventCreateWithFlags(&given_, cudaEventDisableTiming);
  }
  ~OrderedCommunicator() override { cudaEventDestroy(given_); }

  int rank() const override { return inner_->rank(); }
  int world_size() const override { return inner_->world_size(); }
  absl::Status Agree(const CallVote& vote) override {
    return inner_->Agree(vote);
  }
  absl::StatusOr<ExchangeId> StartExchange(
      absl::Span<const SendSegment> sends,
      absl::Span<const RecvSegment> recvs) override {
    if (auto status = CudaStatus(cudaEventRecord(given_, device_->stream()),
                                 "recording an event");
        !status.ok()) {
      return status;
    }
    if (auto status = device_->WaitFor(given_); !status.ok()) return status;
    return inner_->StartExchange(sends, recvs);
  }
  absl::Status WaitExchange(ExchangeId id) override {
    return inner_->WaitExchange(id);
  }
  void Abort() override { inner_->Abort(); }
  uint64_t num_exchanges() const override { return inner_->num_exchanges(); }

 private:
  const std::unique_ptr<Communicator> inner_;
  CudaDevice* const device_;
  cudaEvent_t given_ = nullptr;
};

// Every rank on GPU 0, on a stream of its own.
class CudaBackend : public UlyssesTestBackend {
 public:
  std::unique_ptr<Device> MakeDevice() override {
    return CudaDevice::Open(0).value();
  }
  std::unique_ptr<AttentionKernels> MakeKernels(Device* device) override {
    return std::make_unique<TorchCudaAttentionKernels>(
        static_cast<CudaDevice*>(device));
  }
  InProcessGroup::CopyMemory CopyMemory() override {
    return [](void* dst, const void* src, int64_t bytes) {
      // One thread copies at a time: the group holds a lock.
      cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes),
                      cudaMemcpyDeviceToDevice, cudaStreamPerThread);
      return CudaStatus(cudaStreamSynchronize(cudaStreamPerThread),
                        "copying between ranks");
    };
  }
  std::unique_ptr<Communicator> Order(
      std::unique_ptr<Communicator> communicator, Device* device) override {
    return std::make_unique<OrderedCommunicator>(
        std::move(communicator), static_cast<CudaDevice*>(device));
  }
  std::vector<AttentionKernelKind> Kernels() override {
    return {AttentionKernelKind::kMath, AttentionKernelKind::kFlash,
            AttentionKernelKind::kCudnn};
  }
};

}  // namespace

std::unique_ptr<UlyssesTestBackend> MakeUlyssesTestBackend() {
  return std::make_unique<CudaBackend>();
}

}  // namespace ithaca
