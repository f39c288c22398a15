#include "worker/cpu_regions.h"

#include <utility>

#include "worker/shared_memory_file.h"

namespace ithaca {
namespace {

class CpuSharedRegion : public AttachedRegion {
 public:
  explicit CpuSharedRegion(SharedMemoryFile file) : file_(std::move(file)) {}

  absl::Status Check() override { return file_.Check(); }
  // The device's memory is the host's.
  absl::Status CopyToDevice(Device* /*device*/, void* dst, int64_t offset,
                            int64_t bytes) override {
    return file_.Read(dst, offset, bytes);
  }
  absl::Status CopyFromDevice(Device* /*device*/, int64_t offset,
                              const void* src, int64_t bytes) override {
    return file_.Write(offset, src, bytes);
  }

 private:
  const SharedMemoryFile file_;
};

class CpuRegionOpener : public RegionOpener {
 public:
  absl::StatusOr<std::unique_ptr<AttachedRegion>> Open(
      const Region& region) override {
    const auto* object = std::get_if<SharedMemoryObject>(&region.memory);
    if (object == nullptr) {
      return absl::UnimplementedError("CUDA memory: this rank runs on a CPU");
    }
    auto file = SharedMemoryFile::Open(*object, region.byte_size);
    if (!file.ok()) return file.status();
    return std::make_unique<CpuSharedRegion>(*std::move(file));
  }
};

}  // namespace

std::unique_ptr<RegionOpener> MakeCpuRegionOpener() {
  return std::make_unique<CpuRegionOpener>();
}

}  // namespace ithaca
