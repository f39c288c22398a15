#include "worker/cuda_shared_region.h"

#include <cuda_runtime_api.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/cuda_status.h"

namespace ithaca {
namespace {

// Below it the driver may copy with the CPU, which a truncated object's
// mapping would kill.
constexpr int64_t kLeastByGpu = int64_t{64} << 10;

// What goes through the host at a time.
constexpr int64_t kBounceBytes = int64_t{1} << 20;

// A mapping that the GPU alone touches.
class LockedMapping {
 public:
  // Errors: why it can't be.
  static absl::StatusOr<LockedMapping> Make(const SharedMemoryFile& file,
                                            int ordinal) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t first = file.begin() / page * page;
    const int64_t lead = file.begin() - first;
    const auto size = static_cast<size_t>(lead + file.byte_size());
    if (file.byte_size() == 0) return absl::InvalidArgumentError("empty");
    void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED,
                              file.descriptor(), first);
    if (mapped == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("mmap: ", std::strerror(errno)));
    }
    absl::Status locked =
        CudaStatus(cudaSetDevice(ordinal), "choosing the GPU");
    if (locked.ok()) {
      locked =
          CudaStatus(cudaHostRegister(mapped, size, cudaHostRegisterPortable),
                     absl::StrCat("page-locking ", size, " bytes"));
    }
    if (!locked.ok()) {
      munmap(mapped, size);
      return locked;
    }
    return LockedMapping(mapped, size, lead);
  }
  LockedMapping(LockedMapping&& other) noexcept
      : mapped_(std::exchange(other.mapped_, nullptr)),
        size_(other.size_),
        lead_(other.lead_) {}
  LockedMapping& operator=(LockedMapping&&) = delete;
  ~LockedMapping() {
    if (mapped_ == nullptr) return;
    static_cast<void>(
        CudaStatus(cudaHostUnregister(mapped_), "unlocking pages"));
    munmap(mapped_, size_);
  }

  // Of the region's byte `offset`.
  char* At(int64_t offset) const {
    return static_cast<char*>(mapped_) + lead_ + offset;
  }

 private:
  LockedMapping(void* mapped, size_t size, int64_t lead)
      : mapped_(mapped), size_(size), lead_(lead) {}

  void* mapped_;
  size_t size_;
  int64_t lead_;
};

class CudaSharedRegion : public AttachedRegion {
 public:
  CudaSharedRegion(SharedMemoryFile file, absl::StatusOr<LockedMapping> mapping)
      : file_(std::move(file)), mapping_(std::move(mapping)) {}

  absl::Status Check() override { return file_.Check(); }

  absl::Status CopyToDevice(Device* device, void* dst, int64_t offset,
                            int64_t bytes) override {
    if (ByGpu(bytes)) return device->Copy(dst, mapping_->At(offset), bytes);
    return ThroughHost(bytes, [&](int64_t done, char* bounce, int64_t size) {
      absl::Status status = file_.Read(bounce, offset + done, size);
      if (!status.ok()) return status;
      return device->CopyFromHost(static_cast<char*>(dst) + done, bounce, size);
    });
  }

  absl::Status CopyFromDevice(Device* device, int64_t offset, const void* src,
                              int64_t bytes) override {
    if (ByGpu(bytes)) return device->Copy(mapping_->At(offset), src, bytes);
    return ThroughHost(bytes, [&](int64_t done, char* bounce, int64_t size) {
      absl::Status status = device->CopyToHost(
          bounce, static_cast<const char*>(src) + done, size);
      if (!status.ok()) return status;
      return file_.Write(offset + done, bounce, size);
    });
  }

 private:
  bool ByGpu(int64_t bytes) const {
    return mapping_.ok() && bytes >= kLeastByGpu;
  }

  template <typename CopyPiece>
  static absl::Status ThroughHost(int64_t bytes, const CopyPiece& copy) {
    std::vector<char> bounce(
        static_cast<size_t>(std::min(bytes, kBounceBytes)));
    for (int64_t done = 0; done < bytes; done += kBounceBytes) {
      const absl::Status status =
          copy(done, bounce.data(), std::min(kBounceBytes, bytes - done));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const SharedMemoryFile file_;
  const absl::StatusOr<LockedMapping> mapping_;
};

}  // namespace

std::unique_ptr<AttachedRegion> AttachSharedMemoryToGpu(SharedMemoryFile file,
                                                        int ordinal) {
  absl::StatusOr<LockedMapping> mapping = LockedMapping::Make(file, ordinal);
  if (!mapping.ok() && file.byte_size() > 0) {
    static const bool logged = [&] {
      spdlog::warn(
          "shared memory is copied through the host, since it can't be "
          "page-locked: {}",
          std::string(mapping.status().message()));
      return true;
    }();
    static_cast<void>(logged);
  }
  return std::make_unique<CudaSharedRegion>(std::move(file),
                                            std::move(mapping));
}

}  // namespace ithaca
