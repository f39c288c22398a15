#include "kernels/layout_cpu.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "core/attention_call.h"
#include "core/data_type.h"
#include "kernels/element.h"
#include "kernels/layout.h"
#include "kernels/quantization.h"

// The row loops are written once and compiled twice on x86-64: for its first
// generation and for AVX2, chosen when the program runs.
#if defined(__x86_64__)
#define ITHACA_AVX2_TARGET __attribute__((target("avx2")))
#define ITHACA_HAS_AVX2() __builtin_cpu_supports("avx2")
#else
#define ITHACA_AVX2_TARGET
#define ITHACA_HAS_AVX2() false
#endif

#define ITHACA_ALWAYS_INLINE __attribute__((always_inline)) inline

namespace ithaca::kernels {

namespace {

const char* RowsOf(const HeadBlock<const void>& block, int64_t b, int64_t t,
                   int64_t element_size) {
  return static_cast<const char*>(block.base) +
         (b * block.batch_stride + t * block.token_stride) * element_size;
}

char* RowsOf(const HeadBlock<void>& block, int64_t b, int64_t t,
             int64_t element_size) {
  return static_cast<char*>(block.base) +
         (b * block.batch_stride + t * block.token_stride) * element_size;
}

// ------------------------------------------------------------------- copies

void Copy(const CopyJob& job, int64_t head_dim, int64_t element_size) {
  // Rows of a block are dense; where tokens are too, on both sides, a batch
  // element is one run, and where batch elements are, the whole job is.
  int64_t run = job.heads * head_dim;
  int64_t tokens = job.tokens;
  int64_t batch = job.batch;
  if (job.src.token_stride == run && job.dst.token_stride == run) {
    run *= tokens;
    tokens = 1;
    if (job.src.batch_stride == run && job.dst.batch_stride == run) {
      run *= batch;
      batch = 1;
    }
  }
  if (run == 0) return;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      std::memcpy(RowsOf(job.dst, b, t, element_size),
                  RowsOf(job.src, b, t, element_size),
                  static_cast<size_t>(run * element_size));
    }
  }
}

// ------------------------------------------------------------ quantisation

template <typename Storage>
ITHACA_ALWAYS_INLINE Storage MaxMagnitude(const Storage* row, int64_t size,
                                          Storage mask) {
  Storage amax = 0;
  for (int64_t d = 0; d < size; ++d) {
    const Storage magnitude = row[d] & mask;
    amax = magnitude > amax ? magnitude : amax;
  }
  return amax;
}

template <DataType T, CommunicationPrecision P>
ITHACA_ALWAYS_INLINE void QuantizeBlock(const QuantizeJob& job,
                                        int64_t head_dim) {
  using Storage = typename Element<T>::Storage;
  uint8_t* __restrict payload = job.payload;
  float* __restrict scales = job.scales;
  for (int64_t b = 0; b < job.batch; ++b) {
    for (int64_t t = 0; t < job.tokens; ++t) {
      const Storage* __restrict row =
          reinterpret_cast<const Storage*>(RowsOf(job.src, b, t, ByteSize(T)));
      for (int64_t h = 0; h < job.heads; ++h) {
        const Storage amax = MaxMagnitude(row, head_dim, Element<T>::kAbsMask);
        const float scale = Codec<P>::Scale(Element<T>::Widen(amax));
        const float divisor = Divisor(scale);
        for (int64_t d = 0; d < head_dim; ++d) {
          payload[d] = Codec<P>::Encode(Element<T>::Widen(row[d]) / divisor);
        }
        *scales++ = scale;
        row += head_dim;
        payload += head_dim;
      }
    }
  }
}

template <DataType T, CommunicationPrecision P>
ITHACA_ALWAYS_INLINE void DequantizeBlock(const DequantizeJob& job,
                                          int64_t head_dim) {
  using Storage = typename Element<T>::Storage;
  const uint8_t* __restrict payload = job.payload;
  const float* __restrict scales = job.scales;
  for (int64_t b = 0; b < job.batch; ++b) {
    for (int64_t t = 0; t < job.tokens; ++t) {
      Storage* __restrict row =
          reinterpret_cast<Storage*>(RowsOf(job.dst, b, t, ByteSize(T)));
      for (int64_t h = 0; h < job.heads; ++h) {
        const float scale = *scales++;
        for (int64_t d = 0; d < head_dim; ++d) {
          row[d] = Element<T>::Round(Codec<P>::Decode(payload[d]) * scale);
        }
        row += head_dim;
        payload += head_dim;
      }
    }
  }
}

template <DataType T, CommunicationPrecision P>
void QuantizeBaseline(const QuantizeJob& job, int64_t head_dim) {
  QuantizeBlock<T, P>(job, head_dim);
}

template <DataType T, CommunicationPrecision P>
ITHACA_AVX2_TARGET void QuantizeAvx2(const QuantizeJob& job, int64_t head_dim) {
  QuantizeBlock<T, P>(job, head_dim);
}

template <DataType T, CommunicationPrecision P>
void DequantizeBaseline(const DequantizeJob& job, int64_t head_dim) {
  DequantizeBlock<T, P>(job, head_dim);
}

template <DataType T, CommunicationPrecision P>
ITHACA_AVX2_TARGET void DequantizeAvx2(const DequantizeJob& job,
                                       int64_t head_dim) {
  DequantizeBlock<T, P>(job, head_dim);
}

using QuantizeFunction = void (*)(const QuantizeJob&, int64_t);
using DequantizeFunction = void (*)(const DequantizeJob&, int64_t);

template <DataType T, CommunicationPrecision P>
QuantizeFunction ChooseQuantize() {
  return ITHACA_HAS_AVX2() ? &QuantizeAvx2<T, P> : &QuantizeBaseline<T, P>;
}

template <DataType T, CommunicationPrecision P>
DequantizeFunction ChooseDequantize() {
  return ITHACA_HAS_AVX2() ? &DequantizeAvx2<T, P> : &DequantizeBaseline<T, P>;
}

template <CommunicationPrecision P>
QuantizeFunction ChooseQuantize(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return ChooseQuantize<DataType::kFloat16, P>();
    case DataType::kBFloat16:
      return ChooseQuantize<DataType::kBFloat16, P>();
    case DataType::kFloat32:
      break;
  }
  return ChooseQuantize<DataType::kFloat32, P>();
}

template <CommunicationPrecision P>
DequantizeFunction ChooseDequantize(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat16:
      return ChooseDequantize<DataType::kFloat16, P>();
    case DataType::kBFloat16:
      return ChooseDequantize<DataType::kBFloat16, P>();
    case DataType::kFloat32:
      break;
  }
  return ChooseDequantize<DataType::kFloat32, P>();
}

}  // namespace

void CopyHeadsCpu(const LayoutParams& params, absl::Span<const CopyJob> jobs) {
  for (const CopyJob& job : jobs) {
    Copy(job, params.head_dim, ByteSize(params.dtype));
  }
}

void QuantizeHeadsCpu(const LayoutParams& params,
                      absl::Span<const QuantizeJob> jobs) {
  const QuantizeFunction quantize =
      params.precision == CommunicationPrecision::kInt8
          ? ChooseQuantize<CommunicationPrecision::kInt8>(params.dtype)
          : ChooseQuantize<CommunicationPrecision::kFp8E4m3>(params.dtype);
  for (const QuantizeJob& job : jobs) quantize(job, params.head_dim);
}

void DequantizeHeadsCpu(const LayoutParams& params,
                        absl::Span<const DequantizeJob> jobs) {
  const DequantizeFunction dequantize =
      params.precision == CommunicationPrecision::kInt8
          ? ChooseDequantize<CommunicationPrecision::kInt8>(params.dtype)
          : ChooseDequantize<CommunicationPrecision::kFp8E4m3>(params.dtype);
  for (const DequantizeJob& job : jobs) dequantize(job, params.head_dim);
}

}  // namespace ithaca::kernels
