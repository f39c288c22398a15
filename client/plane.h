#ifndef ITHACA_CLIENT_PLANE_H_
#define ITHACA_CLIENT_PLANE_H_

#include <optional>
#include <string_view>

namespace ithaca::client {

// How the tensors of a call get to the server and back.
enum class Plane {
  kAuto,          // the best of the others that both sides can
  kUnary,         // inside the messages
  kStream,        // in chunks, for tensors of any size
  kSharedMemory,  // in memory of this host that the server's workers map
  kCudaMemory,    // in GPU memory of this host that the workers open
};

// "auto", "unary", "stream", "shared_memory", "cuda_memory": as in the
// trailing metadata "ithaca-plane".
std::string_view Name(Plane plane);

// The plane of that name; '-' stands for '_' too.
std::optional<Plane> ParsePlane(std::string_view name);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_PLANE_H_
