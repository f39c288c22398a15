#ifndef ITHACA_CLIENT_PLANE_CHOICE_H_
#define ITHACA_CLIENT_PLANE_CHOICE_H_

#include <cstdint>
#include <string>

#include "client/attention_call.h"
#include "client/plane.h"

// Which plane a call takes. Pure functions.

namespace ithaca::client {

// From so many bytes in one direction on a stream is faster than a message, and
// holds less memory. Measured on loopback by tests/bench/plane_benchmark.py.
inline constexpr uint64_t kStreamFromBytes = uint64_t{8} << 20;

// Up to so many in both together a message is as fast as shared memory.
inline constexpr uint64_t kSharedMemoryFromBytes = uint64_t{256} << 10;

// Bytes of one call that are not in a region.
struct InlineBytes {
  uint64_t request = 0;  // of query, key and value
  uint64_t response = 0;
  uint64_t total() const { return request + response; }
};

InlineBytes CountInlineBytes(const AttentionArguments& arguments);

// What is known of both sides.
struct PlaneLimits {
  uint64_t max_message_bytes = 0;  // the smaller of both sides'
  bool shared_memory = false;      // the server has it enabled
};

struct PlaneChoice {
  Plane plane = Plane::kUnary;
  std::string note = {};  // why not the one that was asked for
};

// `asked`: kAuto, kUnary, kStream or kSharedMemory.
PlaneChoice ChoosePlane(Plane asked, const InlineBytes& bytes,
                        const PlaneLimits& limits);

// The plane of a call that goes through the connection: kUnary or kStream.
Plane ChooseConnectionPlane(Plane asked, const InlineBytes& bytes,
                            uint64_t max_message_bytes);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_PLANE_CHOICE_H_
