#include "worker/cuda_pinned_memory.h"

#include <cuda_runtime_api.h>

#include "worker/cuda_status.h"

namespace ithaca {
namespace {

class CudaPinnedMemory : public PinnedMemory {
 public:
  explicit CudaPinnedMemory(int ordinal) : ordinal_(ordinal) {}

  char* Allocate(int64_t bytes) override {
    void* memory = nullptr;
    absl::Status status =
        CudaStatus(cudaSetDevice(ordinal_), "choosing the GPU");
    if (status.ok()) {
      status = CudaStatus(cudaHostAlloc(&memory, static_cast<size_t>(bytes),
                                        cudaHostAllocPortable),
                          "allocating pinned host memory");
    }
    return status.ok() ? static_cast<char*>(memory) : nullptr;
  }

  void Free(char* memory) override {
    if (cudaSetDevice(ordinal_) != cudaSuccess) return;
    static_cast<void>(
        CudaStatus(cudaFreeHost(memory), "freeing pinned host memory"));
  }

 private:
  const int ordinal_;
};

}  // namespace

std::shared_ptr<PinnedMemory> MakeCudaPinnedMemory(int ordinal) {
  return std::make_shared<CudaPinnedMemory>(ordinal);
}

}  // namespace ithaca
