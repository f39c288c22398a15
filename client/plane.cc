#include "client/plane.h"

#include <algorithm>
#include <string>

namespace ithaca::client {

std::string_view Name(Plane plane) {
  switch (plane) {
    case Plane::kAuto:
      return "auto";
    case Plane::kUnary:
      return "unary";
    case Plane::kStream:
      return "stream";
    case Plane::kSharedMemory:
      return "shared_memory";
    case Plane::kCudaMemory:
      return "cuda_memory";
  }
  return "unknown";
}

std::optional<Plane> ParsePlane(std::string_view name) {
  std::string spelled(name);
  std::replace(spelled.begin(), spelled.end(), '-', '_');
  for (const Plane plane : {Plane::kAuto, Plane::kUnary, Plane::kStream,
                            Plane::kSharedMemory, Plane::kCudaMemory}) {
    if (Name(plane) == spelled) return plane;
  }
  return std::nullopt;
}

}  // namespace ithaca::client
