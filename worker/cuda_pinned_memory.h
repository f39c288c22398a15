#ifndef ITHACA_WORKER_CUDA_PINNED_MEMORY_H_
#define ITHACA_WORKER_CUDA_PINNED_MEMORY_H_

#include <memory>

#include "worker/host_buffer_pool.h"

namespace ithaca {

// Host memory that is page-locked for every GPU of this process.
std::shared_ptr<PinnedMemory> MakeCudaPinnedMemory(int ordinal);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_PINNED_MEMORY_H_
