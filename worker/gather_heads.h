#ifndef ITHACA_WORKER_GATHER_HEADS_H_
#define ITHACA_WORKER_GATHER_HEADS_H_

#include <vector>

#include "kernels/layout.h"
#include "worker/ulysses_call.h"

// The way back, ScatterSequenceGatherHeads: each rank hands each other one that
// one's image tokens of the heads it attended, and all ranks gather all heads
// of the text. Afterwards a rank has all heads of its tokens,
// [B, S_r, Hq, D], and [B, T, Hq, D] of the text.
//
// NATIVE: rows are sent as the attention left them, and one CopyHeads puts
// what arrived, and the own rows, into the output. 8-bit: as on the way in.
// Text is only ever copied: it too is sent as the attention left it.
//
// Pure: jobs and segments, made from the call's pointers.

namespace ithaca {

// After attention: joins the pieces of an output. None where there is one.
std::vector<kernels::CopyJob> OutputPackCopyJobs(const UlyssesCall& call,
                                                 int lane,
                                                 const LaneOutput& output);
// After those. None for NATIVE.
std::vector<kernels::QuantizeJob> OutputPackQuantizeJobs(
    const UlyssesCall& call, int lane, const LaneOutput& output);

// NATIVE sends point into `output` where it is in one piece.
ExchangeSegments OutputSegments(const UlyssesCall& call, int lane,
                                const LaneOutput& output);

// NATIVE only.
std::vector<kernels::CopyJob> OutputUnpackCopyJobs(const UlyssesCall& call,
                                                   int lane,
                                                   const LaneOutput& output);
// None for NATIVE.
std::vector<kernels::DequantizeJob> OutputUnpackDequantizeJobs(
    const UlyssesCall& call, int lane);

// One all-gather for all heads of all lanes. outputs: by lane; sends point into
// them.
ExchangeSegments TextSegments(const UlyssesCall& call,
                              const std::vector<LaneOutput>& outputs);
std::vector<kernels::CopyJob> TextUnpackJobs(
    const UlyssesCall& call, const std::vector<LaneOutput>& outputs);

}  // namespace ithaca

#endif  // ITHACA_WORKER_GATHER_HEADS_H_
