#ifndef ITHACA_WORKER_LIBRARY_VERSION_H_
#define ITHACA_WORKER_LIBRARY_VERSION_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

// Versions of the GPU libraries as they number themselves. What a program was
// built for and what it finds where it runs can differ; an older one fails
// late and strangely, so it is refused at the start.

namespace ithaca {

std::string CudaVersionString(int version);  // 13000 -> "13.0"
std::string NcclVersionString(int version);  // 22809 -> "2.28.9"

// kFailedPrecondition, naming both versions, if found < built.
absl::Status CheckCudaVersion(std::string_view library, int built, int found);
absl::Status CheckNcclVersion(int built, int found);

}  // namespace ithaca

#endif  // ITHACA_WORKER_LIBRARY_VERSION_H_
