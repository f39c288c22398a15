#ifndef ITHACA_WORKER_CUDA_STATUS_H_
#define ITHACA_WORKER_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace ithaca {

// What a CUDA call answered, as a status; `what` says what was tried.
//
// Out of memory is kResourceExhausted, and the error that CUDA keeps is
// cleared, so that the next call is judged by itself. Everything else is
// kInternal: most faults of a GPU stay with the process for good.
absl::Status CudaStatus(cudaError_t error, std::string_view what);

}  // namespace ithaca

#endif  // ITHACA_WORKER_CUDA_STATUS_H_
