#ifndef ITHACA_SERVER_MEMORY_SLICE_H_
#define ITHACA_SERVER_MEMORY_SLICE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "ithaca/v1/attention.pb.h"
#include "server/memory_region.h"

namespace ithaca::server {

// Bytes that a request's tensors have by their shapes.
struct TensorSizes {
  int64_t query = 0;  // and the output
  int64_t key = 0;    // and the value
  int64_t element = 0;
};

// Whether any tensor of the request, or its output, is in a region.
bool HasSlices(const ithaca::v1::AttentionRequest& request);

// Finds and holds the regions that a request names, each once, and checks that
// every slice is within its region, as large as its tensor, at a multiple of
// the element size from the start of the memory, and that the output overlaps
// no input. Inputs may overlap. lookup: empty if no memory plane is enabled.
// Errors, naming the field: kInvalidArgument; kUnimplemented (no memory plane);
// those of lookup.
absl::StatusOr<CallRegions> ReadSlices(
    const ithaca::v1::AttentionRequest& request, const TensorSizes& sizes,
    const RegionLookup& lookup);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMORY_SLICE_H_
