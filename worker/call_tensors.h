#ifndef ITHACA_WORKER_CALL_TENSORS_H_
#define ITHACA_WORKER_CALL_TENSORS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/sequence_parallel_plan.h"
#include "worker/arena.h"
#include "worker/device.h"
#include "worker/host_buffer_pool.h"
#include "worker/rank_call.h"
#include "worker/rank_tensors.h"
#include "worker/region.h"
#include "worker/region_table.h"
#include "worker/ulysses_call.h"

namespace ithaca {

// Bytes that the call's own message carries to this rank.
int64_t InlineInputBytes(const SequenceParallelPlan& plan, int rank,
                         const RankCall& call);

// One call's tensors on one rank: from where each part of them comes, where it
// lies on the device, and where it goes.
//
// A part in a region that the device reaches as its own memory stays there, if
// its rows are in one run; an output only where it does not lie over an input.
// What lies in the host's memory may stay there too, where the device reaches
// that. Every other part has a place in the arena, and is copied.
//
// Thread-safety: one thread at a time.
class CallTensors {
 public:
  // Takes the call's regions into use. table: null if there are none.
  // Errors: kInvalidArgument (a tensor is not the whole of one, or not within
  // its region), kUnimplemented (no table), kFailedPrecondition (a region is
  // smaller than it was), RegionTable's.
  static absl::StatusOr<CallTensors> Open(const RankCall& call,
                                          const SequenceParallelPlan& plan,
                                          int rank, RegionTable* table);

  // Of the output that goes into the response.
  int64_t host_output_bytes() const;
  // For a device that reaches the host's memory: inputs that came in one piece
  // stay in it, where that saves a copy, and the output is made in `host`,
  // which is host_output_bytes() large. Both are used until the attention has
  // run.
  void StayOnHost(const RankCall& call, HostBuffer* host);
  // Whether inputs are read from the call's own piece to the end.
  bool reads_message() const { return reads_message_; }
  // In all, for Place.
  int64_t arena_bytes() const;
  // REQUIRES: so much room in the arena.
  void Place(Arena* arena);
  RankInputs inputs() const;
  RankOutputs outputs() const;

  // Inputs to the device: the call's own pieces, and regions' rows. What is
  // page-locked is read until the device has been synchronized.
  // REQUIRES: Place; InlineInputBytes bytes in the call's pieces.
  // Errors: the device's, AttachedRegion's.
  absl::Status Scatter(const RankCall& call, Device* device) const;

  // The output to `host`, host_output_bytes() large, or to its region, of
  // which no other row is written. It is there when the device has been
  // synchronized. Errors: as Scatter.
  absl::Status Gather(Device* device, HostBuffer* host) const;

  // kFailedPrecondition: a region is smaller than it was.
  absl::Status CheckRegions() const;

 private:
  // Image rows, or text rows, of one tensor.
  struct Part {
    RowBlocks rows;                          // of the whole tensor
    std::shared_ptr<AttachedRegion> region;  // null: in the call's messages
    int64_t tensor_offset = 0;               // in the region
    bool in_place = false;
    bool wanted = true;  // the text output of most ranks is not
    char* memory = nullptr;
  };
  // Inputs in the order in which the call's message has them.
  enum PartName : uint8_t {
    kImageQuery,
    kImageKey,
    kImageValue,
    kTextQuery,
    kTextKey,
    kTextValue,
    kImageOutput,
    kTextOutput,
    kNumParts,
  };

  CallTensors() = default;
  bool IsAligned(const char* memory) const {
    return reinterpret_cast<uintptr_t>(memory) %
               static_cast<uintptr_t>(alignment_) ==
           0;
  }
  void DecideWhatStays();

  std::array<Part, kNumParts> parts_;
  int64_t alignment_ = 1;  // of each row's memory, bytes
  bool attends_in_place_ = false;
  bool reads_message_ = false;
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_CALL_TENSORS_H_
