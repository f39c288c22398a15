#ifndef ITHACA_WORKER_CUDA_REGIONS_H_
#define ITHACA_WORKER_CUDA_REGIONS_H_

#include <memory>
#include <string>

#include "worker/region.h"

namespace ithaca {

// Regions for a rank on GPU `ordinal` of those CUDA shows to the process, whose
// UUID this is.
//
// Shared memory is mapped and page-locked once for a region, and copied by the
// GPU alone: pages that are locked outlive their object's truncation, and the
// process never touches the mapping itself. Small pieces, which the driver may
// copy with the CPU, and regions that cannot be page-locked are read and
// written as a file.
//
// CUDA memory is opened through its handle, and stays open as long as the
// region is; it may lie on another GPU that this one reaches.
std::unique_ptr<RegionOpener> MakeCudaRegionOpener(int ordinal,
                                                   std::string uuid);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_REGIONS_H_
