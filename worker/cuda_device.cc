#include "worker/cuda_device.h"

#include <cuda_runtime_api.h>
#include <sched.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/macros.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/layout_cuda.h"
#include "worker/cuda_status.h"
#include "worker/cuda_uuid.h"
#include "worker/library_version.h"

namespace ithaca {

namespace {

// Large enough that a copy engine runs at full rate, small enough that the
// host's copy into one overlaps the engine's copy out of the other.
constexpr int64_t kStagingBytes = int64_t{4} << 20;

// How the host waits: it looks without pause at first, since most calls are
// short, and then sleeps between looks.
constexpr absl::Duration kSpinTime = absl::Milliseconds(1);
constexpr absl::Duration kSleepTime = absl::Microseconds(20);
constexpr absl::Duration kWaitCheckInterval = absl::Microseconds(200);

constexpr DeviceMark kNoMark = 0;

absl::Status CheckVersions() {
  int driver = 0;
  if (auto status = CudaStatus(cudaDriverGetVersion(&driver),
                               "asking for the CUDA driver's version");
      !status.ok()) {
    return status;
  }
  if (driver == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no CUDA driver is loaded; this program was built for ",
        CudaVersionString(CUDART_VERSION), " and needs that or a newer one"));
  }
  if (auto status = CheckCudaVersion("CUDA driver", CUDART_VERSION, driver);
      !status.ok()) {
    return status;
  }
  int runtime = 0;
  if (auto status = CudaStatus(cudaRuntimeGetVersion(&runtime),
                               "asking for the CUDA runtime's version");
      !status.ok()) {
    return status;
  }
  return CheckCudaVersion("CUDA runtime", CUDART_VERSION, runtime);
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int ordinal) {
  if (auto status = CheckVersions(); !status.ok()) return status;
  int count = 0;
  if (auto status = CudaStatus(cudaGetDeviceCount(&count), "counting GPUs");
      !status.ok()) {
    return status;
  }
  if (ordinal < 0 || ordinal >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuda:", ordinal, ": this process sees ", count, " GPUs"));
  }
  auto device = absl::WrapUnique(new CudaDevice(ordinal));
  if (auto status = device->Initialize(); !status.ok()) return status;
  return device;
}

absl::Status CudaDevice::Initialize() {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  cudaDeviceProp properties;
  if (auto status = CudaStatus(cudaGetDeviceProperties(&properties, ordinal_),
                               "asking for the GPU's properties");
      !status.ok()) {
    return status;
  }
  uuid_ = CudaUuidString(properties.uuid);
  compute_capability_ = properties.major * 10 + properties.minor;
  if (auto status =
          CudaStatus(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
                     "making the compute stream");
      !status.ok()) {
    return status;
  }
  if (auto status =
          CudaStatus(cudaEventCreateWithFlags(&end_, cudaEventDisableTiming),
                     "making an event");
      !status.ok()) {
    return status;
  }
  for (Staging& staging : staging_) {
    if (auto status = CudaStatus(cudaMallocHost(&staging.memory, kStagingBytes),
                                 "allocating pinned host memory");
        !status.ok()) {
      return status;
    }
    if (auto status = CudaStatus(
            cudaEventCreateWithFlags(&staging.free, cudaEventDisableTiming),
            "making an event");
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

CudaDevice::~CudaDevice() {
  if (!MakeCurrent().ok()) return;
  for (Staging& staging : staging_) {
    if (staging.free != nullptr) cudaEventDestroy(staging.free);
    if (staging.memory != nullptr) cudaFreeHost(staging.memory);
  }
  for (MarkPool& pool : marks_) {
    for (cudaEvent_t event : pool.events) cudaEventDestroy(event);
  }
  if (end_ != nullptr) cudaEventDestroy(end_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void CudaDevice::SetWaitCheck(std::function<absl::Status()> check) {
  wait_check_ = std::move(check);
}

void CudaDevice::SetReclaim(std::function<void()> reclaim) {
  reclaim_ = std::move(reclaim);
}

absl::Status CudaDevice::MakeCurrent() const {
  return CudaStatus(cudaSetDevice(ordinal_), "choosing the GPU");
}

absl::Status CudaDevice::WaitFor(cudaEvent_t event) {
  const absl::Time start = absl::Now();
  absl::Time last_check = start;
  while (true) {
    const cudaError_t error = cudaEventQuery(event);
    if (error == cudaSuccess) return absl::OkStatus();
    if (error != cudaErrorNotReady) {
      return CudaStatus(error, "waiting for the GPU");
    }
    const absl::Time now = absl::Now();
    if (wait_check_ && now - last_check >= kWaitCheckInterval) {
      if (auto status = wait_check_(); !status.ok()) return status;
      last_check = now;
    }
    if (now - start < kSpinTime) {
      sched_yield();
    } else {
      absl::SleepFor(kSleepTime);
    }
  }
}

std::string CudaDevice::name() const { return absl::StrCat("cuda:", ordinal_); }

absl::StatusOr<void*> CudaDevice::Allocate(int64_t bytes) {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  const std::string what =
      absl::StrCat("allocating ", bytes, " bytes on ", name());
  void* memory = nullptr;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  absl::Status status = CudaStatus(cudaMalloc(&memory, size), what);
  if (absl::IsResourceExhausted(status) && reclaim_) {
    reclaim_();
    status = CudaStatus(cudaMalloc(&memory, size), what);
  }
  if (!status.ok()) return status;
  return memory;
}

void CudaDevice::Free(void* memory) {
  if (memory == nullptr || !MakeCurrent().ok()) return;
  // A fault that an earlier kernel left comes up here too; Synchronize, which
  // can say so, meets it as well.
  static_cast<void>(CudaStatus(cudaFree(memory), "freeing GPU memory"));
}

absl::Status CudaDevice::CopyFromHost(void* dst, const void* src,
                                      int64_t bytes) {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  size_t turn = 0;
  for (int64_t done = 0; done < bytes; done += kStagingBytes, turn ^= 1) {
    Staging& staging = staging_[turn];
    const auto size =
        static_cast<size_t>(std::min(kStagingBytes, bytes - done));
    if (auto status = WaitFor(staging.free); !status.ok()) return status;
    std::memcpy(staging.memory, static_cast<const char*>(src) + done, size);
    if (auto status = CudaStatus(
            cudaMemcpyAsync(static_cast<char*>(dst) + done, staging.memory,
                            size, cudaMemcpyHostToDevice, stream_),
            "copying to the GPU");
        !status.ok()) {
      return status;
    }
    if (auto status = CudaStatus(cudaEventRecord(staging.free, stream_),
                                 "recording an event");
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::CopyToHost(void* dst, const void* src, int64_t bytes) {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  // Chunk i is on its way to the host while chunk i - 1 is copied out of its
  // buffer.
  const int64_t chunks = (bytes + kStagingBytes - 1) / kStagingBytes;
  for (int64_t i = 0; i <= chunks; ++i) {
    if (i < chunks) {
      Staging& staging = staging_[i % 2];
      const int64_t offset = i * kStagingBytes;
      const auto size =
          static_cast<size_t>(std::min(kStagingBytes, bytes - offset));
      // An earlier CopyFromHost may still read the buffer.
      if (auto status = WaitFor(staging.free); !status.ok()) return status;
      if (auto status =
              CudaStatus(cudaMemcpyAsync(staging.memory,
                                         static_cast<const char*>(src) + offset,
                                         size, cudaMemcpyDeviceToHost, stream_),
                         "copying from the GPU");
          !status.ok()) {
        return status;
      }
      if (auto status = CudaStatus(cudaEventRecord(staging.free, stream_),
                                   "recording an event");
          !status.ok()) {
        return status;
      }
    }
    if (i > 0) {
      Staging& staging = staging_[(i - 1) % 2];
      const int64_t offset = (i - 1) * kStagingBytes;
      if (auto status = WaitFor(staging.free); !status.ok()) return status;
      std::memcpy(static_cast<char*>(dst) + offset, staging.memory,
                  static_cast<size_t>(std::min(kStagingBytes, bytes - offset)));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaDevice::Copy(void* dst, const void* src, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (auto status = MakeCurrent(); !status.ok()) return status;
  return CudaStatus(cudaMemcpyAsync(dst, src, static_cast<size_t>(bytes),
                                    cudaMemcpyDefault, stream_),
                    "copying memory");
}

absl::Status CudaDevice::Zero(void* dst, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  if (auto status = MakeCurrent(); !status.ok()) return status;
  return CudaStatus(
      cudaMemsetAsync(dst, 0, static_cast<size_t>(bytes), stream_),
      "zeroing GPU memory");
}

absl::Status CudaDevice::CopyHeads(const kernels::LayoutParams& params,
                                   absl::Span<const kernels::CopyJob> jobs) {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  return CudaStatus(kernels::CopyHeadsCuda(params, jobs, stream_),
                    "launching the head copy");
}

absl::Status CudaDevice::QuantizeHeads(
    const kernels::LayoutParams& params,
    absl::Span<const kernels::QuantizeJob> jobs) {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  return CudaStatus(kernels::QuantizeHeadsCuda(params, jobs, stream_),
                    "launching the quantisation");
}

absl::Status CudaDevice::DequantizeHeads(
    const kernels::LayoutParams& params,
    absl::Span<const kernels::DequantizeJob> jobs) {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  return CudaStatus(kernels::DequantizeHeadsCuda(params, jobs, stream_),
                    "launching the dequantisation");
}

DeviceMark CudaDevice::Mark() {
  if (!MakeCurrent().ok()) return kNoMark;
  MarkPool& pool = marks_[generation_ % 2];
  if (pool.used == pool.events.size()) {
    cudaEvent_t event = nullptr;
    if (cudaEventCreate(&event) != cudaSuccess) return kNoMark;
    pool.events.push_back(event);
  }
  if (cudaEventRecord(pool.events[pool.used], stream_) != cudaSuccess) {
    return kNoMark;
  }
  // Which pool, and which event of it, counted from 1: 0 is no mark.
  return ++pool.used << 1 | generation_ % 2;
}

absl::Status CudaDevice::Synchronize() {
  if (auto status = MakeCurrent(); !status.ok()) return status;
  if (auto status =
          CudaStatus(cudaEventRecord(end_, stream_), "recording an event");
      !status.ok()) {
    return status;
  }
  absl::Status status = WaitFor(end_);
  ++generation_;
  marks_[generation_ % 2].used = 0;
  return status;
}

double CudaDevice::SecondsBetween(DeviceMark from, DeviceMark to) {
  if (from == kNoMark || to == kNoMark) return 0;
  float milliseconds = 0;
  const auto event = [this](DeviceMark mark) {
    return marks_[mark % 2].events[(mark >> 1) - 1];
  };
  const cudaError_t error =
      cudaEventElapsedTime(&milliseconds, event(from), event(to));
  return CudaStatus(error, "reading a stage time").ok() ? milliseconds / 1e3
                                                        : 0;
}

}  // namespace ithaca
