#ifndef ITHACA_KERNELS_PACKED_ELEMENTS_CUH_
#define ITHACA_KERNELS_PACKED_ELEMENTS_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/attention_call.h"
#include "core/data_type.h"
#include "kernels/element.h"
#include "kernels/quantization.h"

// What element.h and quantization.h define, on the 32-bit words that a GPU
// loads: two 16-bit elements or one float32, and four codes. Where the device
// has an instruction for it, it gives the same bits.

namespace ithaca::kernels {

// PackedElements<T>::kPerWord          elements in a word
// PackedElements<T>::Widen(word, x)    x[0 .. kPerWord)
// PackedElements<T>::Round(x)          the word of x[0 .. kPerWord)
// PackedElements<T>::Magnitudes(word)  the absolute of each element
// PackedElements<T>::Max(a, b)         of magnitudes the larger, or NaN if
//                                      either is
// PackedElements<T>::Largest(a)        the largest element of magnitudes
template <DataType>
struct PackedElements;

template <>
struct PackedElements<DataType::kFloat32> {
  static constexpr int kPerWord = 1;
  using Type = Element<DataType::kFloat32>;

  __device__ __forceinline__ static void Widen(uint32_t word, float* x) {
    x[0] = FloatOf(word);
  }
  __device__ __forceinline__ static uint32_t Round(const float* x) {
    return Type::Round(x[0]);
  }
  __device__ __forceinline__ static uint32_t Magnitudes(uint32_t word) {
    return word & Type::kAbsMask;
  }
  // Magnitudes compare like the integers that hold them, a NaN above all.
  __device__ __forceinline__ static uint32_t Max(uint32_t a, uint32_t b) {
    return max(a, b);
  }
  __device__ __forceinline__ static float Largest(uint32_t a) {
    return FloatOf(a);
  }
};

template <>
struct PackedElements<DataType::kBFloat16> {
  static constexpr int kPerWord = 2;

  __device__ __forceinline__ static void Widen(uint32_t word, float* x) {
    x[0] = FloatOf(word << 16);
    x[1] = FloatOf(word & 0xffff0000u);
  }
  __device__ __forceinline__ static uint32_t Round(const float* x) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x[0], x[1]);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ __forceinline__ static uint32_t Magnitudes(uint32_t word) {
    return word & 0x7fff7fffu;
  }
  __device__ __forceinline__ static uint32_t Max(uint32_t a, uint32_t b) {
    const __nv_bfloat162 largest =
        __hmax2_nan(reinterpret_cast<const __nv_bfloat162&>(a),
                    reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const uint32_t&>(largest);
  }
  __device__ __forceinline__ static float Largest(uint32_t a) {
    return FloatOf(max(a << 16, a & 0xffff0000u));
  }
};

template <>
struct PackedElements<DataType::kFloat16> {
  static constexpr int kPerWord = 2;
  using Type = Element<DataType::kFloat16>;

  __device__ __forceinline__ static void Widen(uint32_t word, float* x) {
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(word));
    x[0] = pair.x;
    x[1] = pair.y;
  }
  __device__ __forceinline__ static uint32_t Round(const float* x) {
    const __half2 pair = __floats2half2_rn(x[0], x[1]);
    return reinterpret_cast<const uint32_t&>(pair);
  }
  __device__ __forceinline__ static uint32_t Magnitudes(uint32_t word) {
    return word & 0x7fff7fffu;
  }
  __device__ __forceinline__ static uint32_t Max(uint32_t a, uint32_t b) {
    const __half2 largest = __hmax2_nan(reinterpret_cast<const __half2&>(a),
                                        reinterpret_cast<const __half2&>(b));
    return reinterpret_cast<const uint32_t&>(largest);
  }
  __device__ __forceinline__ static float Largest(uint32_t a) {
    return Type::Widen(static_cast<uint16_t>(max(a & 0xffffu, a >> 16)));
  }
};

// PackedCodes<P>::Encode(q)       the codes of four quotients, NaN, infinite
//                                 and too large ones too
// PackedCodes<P>::EncodeFast(q)   the same for quotients of finite rows, which
//                                 round to at most the largest code
// PackedCodes<P>::Decode(word, x) x[0 .. 4)
template <CommunicationPrecision>
struct PackedCodes;

// Four codes of one Codec in a word.
template <CommunicationPrecision P>
__device__ __forceinline__ uint32_t EncodeEach(const float* q) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word |= static_cast<uint32_t>(Codec<P>::Encode(q[i])) << (8 * i);
  }
  return word;
}

template <CommunicationPrecision P>
__device__ __forceinline__ void DecodeEach(uint32_t word, float* x) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[i] = Codec<P>::Decode(static_cast<uint8_t>(word >> (8 * i)));
  }
}

#if __CUDA_ARCH__ >= 890
template <>
struct PackedCodes<CommunicationPrecision::kFp8E4m3> {
  __device__ __forceinline__ static uint32_t Encode(const float* q) {
    const __nv_fp8x2_storage_t low = __nv_cvt_float2_to_fp8x2(
        make_float2(q[0], q[1]), __NV_SATFINITE, __NV_E4M3);
    const __nv_fp8x2_storage_t high = __nv_cvt_float2_to_fp8x2(
        make_float2(q[2], q[3]), __NV_SATFINITE, __NV_E4M3);
    return low | static_cast<uint32_t>(high) << 16;
  }
  __device__ __forceinline__ static uint32_t EncodeFast(const float* q) {
    return Encode(q);
  }
  __device__ __forceinline__ static void Decode(uint32_t word, float* x) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const __half2 pair(__nv_cvt_fp8x2_to_halfraw2(
          static_cast<__nv_fp8x2_storage_t>(word >> (16 * i)), __NV_E4M3));
      const float2 values = __half22float2(pair);
      x[2 * i] = values.x;
      x[2 * i + 1] = values.y;
    }
  }
};
#else
template <>
struct PackedCodes<CommunicationPrecision::kFp8E4m3> {
  __device__ __forceinline__ static uint32_t Encode(const float* q) {
    return EncodeEach<CommunicationPrecision::kFp8E4m3>(q);
  }
  __device__ __forceinline__ static uint32_t EncodeFast(const float* q) {
    return Encode(q);
  }
  __device__ __forceinline__ static void Decode(uint32_t word, float* x) {
    DecodeEach<CommunicationPrecision::kFp8E4m3>(word, x);
  }
};
#endif

template <>
struct PackedCodes<CommunicationPrecision::kInt8> {
  __device__ __forceinline__ static uint32_t Encode(const float* q) {
    return EncodeEach<CommunicationPrecision::kInt8>(q);
  }
  // As Codec::Encode, without what only other rows need.
  __device__ __forceinline__ static uint32_t EncodeFast(const float* q) {
    constexpr float kRound = 12582912.0f;
    const uint32_t low =
        __byte_perm(BitsOf(q[0] + kRound), BitsOf(q[1] + kRound), 0x0040);
    const uint32_t high =
        __byte_perm(BitsOf(q[2] + kRound), BitsOf(q[3] + kRound), 0x0040);
    return __byte_perm(low, high, 0x5410);
  }
  // 2^23 + (code + 128) has the code's bits, its sign turned, at its end.
  __device__ __forceinline__ static void Decode(uint32_t word, float* x) {
    constexpr uint32_t kTwo23 = 0x4b000000;
    const uint32_t turned = word ^ 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = FloatOf(__byte_perm(turned, kTwo23, 0x7650 | i)) - 8388736.0f;
    }
  }
};

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_PACKED_ELEMENTS_CUH_
