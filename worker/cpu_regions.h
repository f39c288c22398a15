#ifndef ITHACA_WORKER_CPU_REGIONS_H_
#define ITHACA_WORKER_CPU_REGIONS_H_

#include <memory>

#include "worker/region.h"

namespace ithaca {

// Regions for a rank on a CPU: shared memory, read and written as a file.
std::unique_ptr<RegionOpener> MakeCpuRegionOpener();

}  // namespace ithaca

#endif  // ITHACA_WORKER_CPU_REGIONS_H_
