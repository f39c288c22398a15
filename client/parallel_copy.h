#ifndef ITHACA_CLIENT_PARALLEL_COPY_H_
#define ITHACA_CLIENT_PARALLEL_COPY_H_

#include <cstddef>
#include <span>
#include <vector>

namespace ithaca::client {

struct Copy {
  std::span<const std::byte> from;
  std::byte* to = nullptr;  // from.size() bytes, that overlap no other copy
};

// All of them. Many megabytes are spread over threads, since one does not
// reach the memory's rate.
void CopyAll(const std::vector<Copy>& copies);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_PARALLEL_COPY_H_
