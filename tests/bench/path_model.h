#ifndef ITHACA_TESTS_BENCH_PATH_MODEL_H_
#define ITHACA_TESTS_BENCH_PATH_MODEL_H_

#include <cstdint>

#include "core/sequence_parallel_plan.h"

// What a call should take on P GPUs of one host, from bytes, rates and the
// order in which a rank works. On paper: what a run is held against. Pure.

namespace ithaca::bench {

struct MachineRates {
  // What a rank sends, and receives, at one time in an exchange.
  double exchange_bytes_per_second = 290e9;
  double attention_flops_per_second = 700e12;
  // Read plus written by a layout kernel: 0.9 of an H200's copy.
  double layout_bytes_per_second = 0.9 * 4.24e12;
  // From a client's GPU to its peers', and back.
  double client_bytes_per_second = 400e9;
  // What an exchange costs however small it is.
  double exchange_seconds = 20e-6;
};

struct PathTimes {
  double attention = 0;  // of a rank's heads, all at once
  double layout = 0;
  double exchange_in = 0;    // as if alone, all lanes
  double exchange_back = 0;  // likewise, the text's included
  int64_t bytes_in = 0;      // what rank 0 sends or receives, the larger
  int64_t bytes_back = 0;
  int64_t image_bytes_back = 0;  // without the text's
  // From the first pack to the last unpack: compute in order on one stream,
  // exchanges in order on another. Nothing slows down what runs beside it.
  double path = 0;

  double OverAttention() const { return path / attention; }
};

// Of rank 0, whose shares are the largest.
PathTimes PredictPath(const SequenceParallelPlan& plan,
                      const MachineRates& rates);

// Seconds of the plan's call with all tensors in the memory of one client's
// GPU, which is rank 0's: every other rank reads its share of the inputs from
// there, then runs the path, then writes its share of the output there. A lone
// rank attends the tensors where they lie.
double PredictCudaMemoryCall(const SequenceParallelPlan& plan,
                             const MachineRates& rates);

}  // namespace ithaca::bench

#endif  // ITHACA_TESTS_BENCH_PATH_MODEL_H_
