#ifndef ITHACA_KERNELS_LAYOUT_H_
#define ITHACA_KERNELS_LAYOUT_H_

#include <cstdint>

#include "core/attention_call.h"
#include "core/data_type.h"

// Layout and quantisation work of the Ulysses path, described once for CPU and
// GPU. A job moves a block of heads of a token-major tensor:
//
//   element (b, t, h, d) lies at base + (b * batch_stride + t * token_stride +
//   h * D + d) elements, h counted from the block's first head.
//
// So packing is one job a destination rank, unpacking one a source rank, and a
// text head slice or join is a job like the others. One call takes all the jobs
// of a stage, so that it is one pass over memory and, on a GPU, one launch.
//
// Offsets are 64-bit. Source and destination of one call never overlap.
// REQUIRES: every base is aligned to its element, every scales to 4 bytes.
// 16-byte alignment of bases and strides is what makes them fast.

namespace ithaca::kernels {

// Where a block of heads starts and how far apart its tokens lie, in elements.
template <typename T>
struct HeadBlock {
  T* base = nullptr;
  int64_t token_stride = 0;
  int64_t batch_stride = 0;
};

// dst = src, [batch, tokens, heads, D] of dtype, bits kept.
struct CopyJob {
  HeadBlock<const void> src;
  HeadBlock<void> dst;
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t heads = 0;
};

// Rows of a block in 8 bits: payload [batch, tokens, heads, D] bytes and
// scales [batch, tokens, heads] float32, both dense.
//
// FP8_E4M3: scale = max(amax, 1/512) / 448; q = x / scale rounded to nearest
//   even, saturating at +-448. INT8: scale = amax / 127 (1 for a zero row), q
//   rounded half to even and clamped to +-127. Back: q * scale in float32,
//   rounded once to dtype. Nothing finite comes of a row that is not: with a
//   NaN in it the scale is NaN and the whole row comes back NaN; with an
//   infinity the scale is infinite, an infinity comes back as it was, and
//   what was finite as NaN or infinity. A finite row comes back finite.
//   (kernels/quantization.h has it in code.)
struct QuantizeJob {
  HeadBlock<const void> src;
  uint8_t* payload = nullptr;
  float* scales = nullptr;
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t heads = 0;
};

struct DequantizeJob {
  const uint8_t* payload = nullptr;
  const float* scales = nullptr;
  HeadBlock<void> dst;
  int64_t batch = 1;
  int64_t tokens = 0;
  int64_t heads = 0;
};

// What the jobs of one call share.
struct LayoutParams {
  DataType dtype = DataType::kFloat32;
  int64_t head_dim = 0;  // D
  // For (de)quantising: kFp8E4m3 or kInt8.
  CommunicationPrecision precision = CommunicationPrecision::kNative;
};

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_LAYOUT_H_
