#ifndef ITHACA_SERVER_MEMORY_REGION_H_
#define ITHACA_SERVER_MEMORY_REGION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ithaca/internal/v1/worker.pb.h"

// What a call knows of the memory that a client registered, without knowing
// the table that holds it.

namespace ithaca::server {

enum class MemoryKind : uint8_t { kShared, kCuda };

inline std::string_view Name(MemoryKind kind) {
  return kind == MemoryKind::kShared ? "shared" : "cuda";
}

// Immutable once it is registered.
struct MemoryRegion {
  std::string name;  // the client's, unique on the server at one time
  internal::v1::Region memory;

  MemoryKind kind() const {
    return memory.has_shared() ? MemoryKind::kShared : MemoryKind::kCuda;
  }
  uint64_t byte_size() const { return memory.byte_size(); }
};

// A region found for one call.
struct RegionPin {
  std::shared_ptr<const MemoryRegion> region;
  // The region stays attached, and its name taken, until this is gone.
  std::shared_ptr<const void> hold;
};

// Who asks for a region: a call that names a lease has that lease's regions,
// any other those of leases of its own connection.
struct RegionAccess {
  std::string lease;  // empty: none was named
  std::string peer;   // of the connection; empty: not one client's alone
};

// Finds a region for one call, by name.
// Errors: kNotFound (there is none, or it is another's, or it is going),
// kFailedPrecondition (its memory has shrunk).
using RegionLookup =
    std::function<absl::StatusOr<RegionPin>(const std::string& name)>;

// Bytes [offset, offset + byte_size) of a region.
struct RegionPart {
  std::shared_ptr<const MemoryRegion> region;  // nullptr: it is in none
  uint64_t offset = 0;
  uint64_t byte_size = 0;
};

enum class OutputPlace : uint8_t { kResponse, kRegion };

// Where one call's tensors lie.
struct CallRegions {
  RegionPart query;
  RegionPart key;
  RegionPart value;
  RegionPart output;
  // On each region once, for as long as the ranks may work on it.
  std::vector<std::shared_ptr<const void>> holds;

  OutputPlace output_place() const {
    return output.region == nullptr ? OutputPlace::kResponse
                                    : OutputPlace::kRegion;
  }
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_MEMORY_REGION_H_
