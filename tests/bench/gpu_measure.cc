#include "tests/bench/gpu_measure.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ithaca::bench {

namespace {

void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

at::TensorOptions BFloat16OnGpu() {
  return at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
}

// Keeps the device busy for a few hundred microseconds.
void KeepBusy(CudaDevice& device) {
  constexpr size_t kBytes = size_t{1} << 30;
  static void* const memory = [] {
    void* made = nullptr;
    Must(cudaMalloc(&made, kBytes), "allocating memory");
    return made;
  }();
  Must(cudaMemsetAsync(memory, 1, kBytes, device.stream()), "keeping busy");
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double MedianSeconds(CudaDevice& device, const std::function<void()>& work,
                     int warm_ups, int repeats) {
  for (int i = 0; i < warm_ups; ++i) work();
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Must(cudaEventCreate(&begin), "making an event");
  Must(cudaEventCreate(&end), "making an event");
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(repeats));
  for (int i = 0; i < repeats; ++i) {
    KeepBusy(device);
    Must(cudaEventRecord(begin, device.stream()), "recording an event");
    work();
    Must(cudaEventRecord(end, device.stream()), "recording an event");
    Must(cudaEventSynchronize(end), "timed work");
    float milliseconds = 0;
    Must(cudaEventElapsedTime(&milliseconds, begin, end), "reading a time");
    seconds.push_back(milliseconds / 1e3);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return Median(std::move(seconds));
}

double MedianHostSeconds(CudaDevice& device, const std::function<void()>& work,
                         int repeats) {
  std::vector<double> seconds;
  seconds.reserve(static_cast<size_t>(repeats));
  for (int i = 0; i < repeats + 3; ++i) {
    KeepBusy(device);
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - begin;
    Must(cudaStreamSynchronize(device.stream()), "timed work");
    if (i >= 3) seconds.push_back(took.count());
  }
  return Median(std::move(seconds));
}

RandomTensor::RandomTensor(int64_t elements) {
  const auto tensor =
      std::make_shared<at::Tensor>(at::randn({elements}, BFloat16OnGpu()));
  // Made on LibTorch's stream, used on others.
  Must(cudaDeviceSynchronize(), "making random numbers");
  data_ = tensor->data_ptr();
  owner_.push_back(tensor);
}

double MatmulRate(CudaDevice& device) {
  constexpr int64_t kSize = 8192;
  const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(
      device.stream(), static_cast<c10::DeviceIndex>(device.ordinal())));
  const at::Tensor a = at::randn({kSize, kSize}, BFloat16OnGpu());
  const at::Tensor b = at::randn({kSize, kSize}, BFloat16OnGpu());
  at::Tensor out = at::empty({kSize, kSize}, BFloat16OnGpu());
  const double seconds = MedianSeconds(
      device, [&] { at::mm_out(out, a, b); }, 5, 20);
  return 2.0 * kSize * kSize * kSize / seconds;
}

double CopyRate(CudaDevice& device, int64_t bytes) {
  const RandomTensor from(bytes / 2);
  const RandomTensor to(bytes / 2);
  const double seconds = MedianSeconds(
      device,
      [&] {
        cudaMemcpyAsync(to.data(), from.data(), static_cast<size_t>(bytes),
                        cudaMemcpyDeviceToDevice, device.stream());
      },
      3, 15);
  return 2.0 * static_cast<double>(bytes) / seconds;
}

int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  statm >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

std::string GpuName(const CudaDevice& device) {
  cudaDeviceProp properties;
  Must(cudaGetDeviceProperties(&properties, device.ordinal()), "properties");
  return properties.name;
}

}  // namespace ithaca::bench
