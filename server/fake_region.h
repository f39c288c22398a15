#ifndef ITHACA_SERVER_FAKE_REGION_H_
#define ITHACA_SERVER_FAKE_REGION_H_

#include <string>

#include "ithaca/internal/v1/worker.pb.h"

// For tests: shared memory as a rank sees it.

namespace ithaca::server {

// The slice's bytes; empty if it cannot be read.
std::string ReadSlice(const internal::v1::RegionSlice& slice);
// false if it cannot be written.
bool WriteSlice(const internal::v1::RegionSlice& slice,
                const std::string& bytes);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_FAKE_REGION_H_
