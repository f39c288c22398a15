#ifndef ITHACA_WORKER_SCATTER_HEADS_H_
#define ITHACA_WORKER_SCATTER_HEADS_H_

#include <vector>

#include "core/sequence_parallel_plan.h"
#include "kernels/layout.h"
#include "worker/attention_kernel.h"
#include "worker/ulysses_call.h"

// The way in, ScatterHeadsGatherSequence: each rank hands each other one that
// one's heads of the tokens it holds. Afterwards a rank has all image tokens of
// its heads, in global order, followed by its heads of the valid text:
//
//   query [B, S + Tq, h_r, D], key and value [B, S + Tmax, g_r, D]
//
// NATIVE: one CopyHeads packs what is sent and puts the own chunk and the text
// into the final tensors; chunks received are rows of them: no unpack.
// 8-bit: image chunks are quantised, the own one too, sent with their scales,
// and dequantised into the final tensors. Text is only ever copied.
//
// Pure: jobs and segments for one lane, made from the call's pointers.

namespace ithaca {

// Whether these inputs already are the tensors to attend, so that nothing needs
// to be packed: a lone rank's, exchanged in their own dtype, with no valid text
// or with text rows right behind the image rows of the one batch element.
// Rows have to begin at 16-byte addresses, which attention kernels rely on.
bool InputsLieJoined(const SequenceParallelPlan& plan,
                     const RankInputs& inputs);

// None with inputs in place.
std::vector<kernels::CopyJob> PackCopyJobs(const UlyssesCall& call, int lane);
// None for NATIVE.
std::vector<kernels::QuantizeJob> PackQuantizeJobs(const UlyssesCall& call,
                                                   int lane);

ExchangeSegments InputSegments(const UlyssesCall& call, int lane);

// None for NATIVE.
std::vector<kernels::DequantizeJob> UnpackJobs(const UlyssesCall& call,
                                               int lane);

// Batch element b of a piece: all its image rows and valid text, nothing
// masked. query.tokens may be 0: then there is nothing to attend.
AttentionArguments MakeAttentionArguments(const UlyssesCall& call, int lane,
                                          const AttentionPiece& piece,
                                          int64_t b,
                                          AttentionKernelKind kernel);

}  // namespace ithaca

#endif  // ITHACA_WORKER_SCATTER_HEADS_H_
