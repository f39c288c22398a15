#ifndef ITHACA_WORKER_CPU_RANK_DEVICE_H_
#define ITHACA_WORKER_CPU_RANK_DEVICE_H_

#include <memory>

#include "worker/rank_device.h"

namespace ithaca {

// The host's processor, and Gloo. REQUIRES: options.name is "cpu".
std::unique_ptr<RankDevice> OpenCpuRankDevice(const RankDeviceOptions& options);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CPU_RANK_DEVICE_H_
