#ifndef ITHACA_TESTS_BENCH_GPU_MEASURE_H_
#define ITHACA_TESTS_BENCH_GPU_MEASURE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/cuda_device.h"

// Times of work on a GPU, and the two rates that everything else is held
// against. Data is random: zeros run faster than what is served.

namespace ithaca::bench {

double Median(std::vector<double> values);

// Median seconds of what `work` queues on the device's compute stream, by
// events, `repeats` times after `warm_ups`. The device is kept busy before
// each, so that it never waits for the host: times are the device's alone.
double MedianSeconds(CudaDevice& device, const std::function<void()>& work,
                     int warm_ups, int repeats);

// Standard normal bfloat16 numbers on the device, as long as this lives.
class RandomTensor {
 public:
  explicit RandomTensor(int64_t elements);
  void* data() const { return data_; }

 private:
  std::vector<std::shared_ptr<void>> owner_;
  void* data_ = nullptr;
};

// Median seconds that the host takes over `work`, while the device is busy with
// what was given before, so that nothing in it can wait for the device.
double MedianHostSeconds(CudaDevice& device, const std::function<void()>& work,
                         int repeats);

// bfloat16 8192 x 8192 x 8192, in FLOP/s.
double MatmulRate(CudaDevice& device);

// Device to device, of `bytes`: bytes read and written a second.
double CopyRate(CudaDevice& device, int64_t bytes);

// Resident memory of this process, in bytes.
int64_t ResidentBytes();

// "NVIDIA H200".
std::string GpuName(const CudaDevice& device);

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_GPU_MEASURE_H_
