#ifndef ITHACA_WORKER_CUDA_UUID_H_
#define ITHACA_WORKER_CUDA_UUID_H_

#include <cuda_runtime_api.h>

#include <string>

namespace ithaca {

// "GPU-" and 32 hexadecimal digits in the groups of a UUID, as nvidia-smi
// prints it.
std::string CudaUuidString(const cudaUUID_t& uuid);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_UUID_H_
