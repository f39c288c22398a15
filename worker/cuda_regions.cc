#include "worker/cuda_regions.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "worker/cuda_shared_region.h"
#include "worker/cuda_status.h"
#include "worker/cuda_uuid.h"
#include "worker/shared_memory_file.h"

namespace ithaca {
namespace {

// Memory of another process on a GPU.
class CudaMemoryRegion : public AttachedRegion {
 public:
  CudaMemoryRegion(int ordinal, char* allocation, uint64_t offset)
      : ordinal_(ordinal), allocation_(allocation), offset_(offset) {}
  ~CudaMemoryRegion() override {
    if (cudaSetDevice(ordinal_) != cudaSuccess) return;
    static_cast<void>(
        CudaStatus(cudaIpcCloseMemHandle(allocation_), "closing CUDA memory"));
  }

  char* device_memory() override { return allocation_ + offset_; }
  absl::Status Check() override { return absl::OkStatus(); }
  absl::Status CopyToDevice(Device* device, void* dst, int64_t offset,
                            int64_t bytes) override {
    return device->Copy(dst, device_memory() + offset, bytes);
  }
  absl::Status CopyFromDevice(Device* device, int64_t offset, const void* src,
                              int64_t bytes) override {
    return device->Copy(device_memory() + offset, src, bytes);
  }

 private:
  const int ordinal_;
  char* const allocation_;
  const uint64_t offset_;
};

// PyTorch leaves out the "GPU-" that nvidia-smi prints.
bool SameUuid(absl::string_view a, absl::string_view b) {
  return absl::EqualsIgnoreCase(absl::StripPrefix(a, "GPU-"),
                                absl::StripPrefix(b, "GPU-"));
}

absl::Status CannotReach(const CudaAllocation& memory, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("CUDA memory on ", memory.device_uuid,
                   " can't be reached from this process: ", why));
}

// What it means that a handle does not open.
absl::Status CannotOpen(const CudaAllocation& memory, cudaError_t error) {
  cudaGetLastError();
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(
          "opening CUDA memory: out of GPU memory");
    case cudaErrorPeerAccessUnsupported:
    case cudaErrorTooManyPeers:
      return CannotReach(memory, "the GPUs have no access to each other");
    case cudaErrorNotSupported:
      return CannotReach(memory, "this system has no CUDA IPC");
    case cudaErrorInvalidValue:
    case cudaErrorInvalidResourceHandle:
    case cudaErrorMapBufferObjectFailed:
      return CannotReach(
          memory,
          absl::StrCat("its handle is of no allocation of a live process that "
                       "shares this one's PID and IPC name spaces (",
                       cudaGetErrorName(error), ")"));
    default:
      return CannotReach(memory, absl::StrCat(cudaGetErrorName(error), ": ",
                                              cudaGetErrorString(error)));
  }
}

// cuMemGetAddressRange, found at run time: the driver is not linked.
absl::StatusOr<size_t> AllocationSize(void* memory) {
  constexpr unsigned int kSince = 3020;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuMemGetAddressRange", &function, kSince, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    return absl::FailedPreconditionError(
        "the CUDA driver has no cuMemGetAddressRange");
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  const auto get_address_range =
      reinterpret_cast<decltype(&cuMemGetAddressRange)>(function);
  if (get_address_range(&base, &size, reinterpret_cast<CUdeviceptr>(memory)) !=
      CUDA_SUCCESS) {
    return absl::FailedPreconditionError(
        "the size of the CUDA memory is not known");
  }
  return size - (reinterpret_cast<CUdeviceptr>(memory) - base);
}

class CudaRegionOpener : public RegionOpener {
 public:
  CudaRegionOpener(int ordinal, std::string uuid)
      : ordinal_(ordinal), uuid_(std::move(uuid)) {}

  absl::StatusOr<std::unique_ptr<AttachedRegion>> Open(
      const Region& region) override {
    if (const auto* memory = std::get_if<CudaAllocation>(&region.memory)) {
      return OpenCudaMemory(*memory, region.byte_size);
    }
    auto file = SharedMemoryFile::Open(
        std::get<SharedMemoryObject>(region.memory), region.byte_size);
    if (!file.ok()) return file.status();
    return AttachSharedMemoryToGpu(*std::move(file), ordinal_);
  }

 private:
  absl::StatusOr<std::unique_ptr<AttachedRegion>> OpenCudaMemory(
      const CudaAllocation& memory, uint64_t byte_size) const {
    cudaIpcMemHandle_t handle;
    if (memory.ipc_handle.size() != sizeof(handle)) {
      return absl::InvalidArgumentError(
          absl::StrCat("ipc_handle: expected ", sizeof(handle), " bytes, got ",
                       memory.ipc_handle.size()));
    }
    std::memcpy(&handle, memory.ipc_handle.data(), sizeof(handle));
    if (absl::Status reached = CheckGpu(memory); !reached.ok()) return reached;
    if (absl::Status status =
            CudaStatus(cudaSetDevice(ordinal_), "choosing the GPU");
        !status.ok()) {
      return CannotReach(memory, status.message());
    }
    void* allocation = nullptr;
    if (const cudaError_t error = cudaIpcOpenMemHandle(
            &allocation, handle, cudaIpcMemLazyEnablePeerAccess);
        error != cudaSuccess) {
      return CannotOpen(memory, error);
    }
    auto opened = std::make_unique<CudaMemoryRegion>(
        ordinal_, static_cast<char*>(allocation), memory.offset);
    const absl::StatusOr<size_t> size = AllocationSize(allocation);
    if (!size.ok()) return size.status();
    if (memory.offset > *size || byte_size > *size - memory.offset) {
      return absl::InvalidArgumentError(
          absl::StrCat("the CUDA allocation has ", *size, " bytes, not ",
                       byte_size, " from byte ", memory.offset));
    }
    return opened;
  }

  // Whether this GPU may reach the one that the memory is on.
  absl::Status CheckGpu(const CudaAllocation& memory) const {
    if (absl::StartsWith(memory.device_uuid, "MIG-")) {
      return CannotReach(memory, "parts of a GPU (MIG) have no CUDA IPC");
    }
    if (SameUuid(memory.device_uuid, uuid_)) return absl::OkStatus();
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
    for (int other = 0; other < count; ++other) {
      cudaDeviceProp properties;
      if (cudaGetDeviceProperties(&properties, other) != cudaSuccess ||
          !SameUuid(memory.device_uuid, CudaUuidString(properties.uuid))) {
        continue;
      }
      int reaches = 0;
      cudaDeviceCanAccessPeer(&reaches, ordinal_, other);
      cudaGetLastError();
      if (reaches != 0) return absl::OkStatus();
      return CannotReach(memory,
                         absl::StrCat("this rank's GPU, ", uuid_,
                                      ", has no access to that one's memory"));
    }
    return CannotReach(memory,
                       absl::StrCat("it sees no such GPU; its own is ", uuid_));
  }

  const int ordinal_;
  const std::string uuid_;
};

}  // namespace

std::unique_ptr<RegionOpener> MakeCudaRegionOpener(int ordinal,
                                                   std::string uuid) {
  return std::make_unique<CudaRegionOpener>(ordinal, std::move(uuid));
}

}  // namespace ithaca
