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
// what arrived, lane by lane, into the output; the own chunk goes there
// straight. 8-bit: as on the way in. Text is only ever copied.
//
// Pure: jobs and segments, made from the call's pointers.

namespace ithaca {

// After attention: joins pieces where there are several, and copies what stays
// on this rank: the own chunk (NATIVE) and the text, the latter also to where
// it is sent from.
std::vector<kernels::CopyJob> OutputPackCopyJobs(const UlyssesCall& call,
                                                 int lane,
                                                 const LaneOutput& output);
// After those. None for NATIVE.
std::vector<kernels::QuantizeJob> OutputPackQuantizeJobs(
    const UlyssesCall& call, int lane, const LaneOutput& output);

// Sends point into `output` where it is in one piece.
ExchangeSegments OutputSegments(const UlyssesCall& call, int lane,
                                const LaneOutput& output);

// NATIVE only.
std::vector<kernels::CopyJob> OutputUnpackCopyJobs(const UlyssesCall& call,
                                                   int lane);
// None for NATIVE.
std::vector<kernels::DequantizeJob> OutputUnpackDequantizeJobs(
    const UlyssesCall& call, int lane);

// One all-gather for all heads of all lanes.
ExchangeSegments TextSegments(const UlyssesCall& call);
std::vector<kernels::CopyJob> TextUnpackJobs(const UlyssesCall& call);

}  // namespace ithaca

#endif  // ITHACA_WORKER_GATHER_HEADS_H_
