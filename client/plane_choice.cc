#include "client/plane_choice.h"

#include <algorithm>

namespace ithaca::client {
namespace {

// What a message has beside its tensors is far below this.
constexpr uint64_t kMessageMargin = uint64_t{64} << 10;

}  // namespace

InlineBytes CountInlineBytes(const AttentionArguments& arguments) {
  InlineBytes bytes;
  for (const TensorView* view :
       {&arguments.query, &arguments.key, &arguments.value}) {
    if (view->region.region == nullptr) bytes.request += view->bytes.size();
  }
  if (arguments.output_region.region == nullptr) {
    bytes.response = ByteSize(arguments.query);
  }
  return bytes;
}

PlaneChoice ChoosePlane(Plane asked, const InlineBytes& bytes,
                        const PlaneLimits& limits) {
  if (asked == Plane::kSharedMemory || asked == Plane::kAuto) {
    const bool worth_it = asked == Plane::kSharedMemory ||
                          bytes.total() >= kSharedMemoryFromBytes;
    if (limits.shared_memory && worth_it) return {Plane::kSharedMemory};
  }
  PlaneChoice choice{
      ChooseConnectionPlane(asked, bytes, limits.max_message_bytes)};
  if (asked == Plane::kSharedMemory) {
    choice.note = "the server has shared memory disabled";
  }
  return choice;
}

Plane ChooseConnectionPlane(Plane asked, const InlineBytes& bytes,
                            uint64_t max_message_bytes) {
  if (asked == Plane::kUnary || asked == Plane::kStream) return asked;
  const uint64_t largest = std::max(bytes.request, bytes.response);
  const uint64_t fits =
      max_message_bytes - std::min(max_message_bytes, kMessageMargin);
  return largest > fits || largest >= kStreamFromBytes ? Plane::kStream
                                                       : Plane::kUnary;
}

}  // namespace ithaca::client
