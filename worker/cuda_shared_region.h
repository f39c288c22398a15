#ifndef ITHACA_WORKER_CUDA_SHARED_REGION_H_
#define ITHACA_WORKER_CUDA_SHARED_REGION_H_

#include <memory>

#include "worker/region.h"
#include "worker/shared_memory_file.h"

namespace ithaca {

// Shared memory for GPU `ordinal`: see MakeCudaRegionOpener. Without
// page-locking, which is logged once, all of it is copied through the host.
std::unique_ptr<AttachedRegion> AttachSharedMemoryToGpu(SharedMemoryFile file,
                                                        int ordinal);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_SHARED_REGION_H_
