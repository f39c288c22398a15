#include <cuda_runtime.h>

#include <cstdint>

#include "absl/types/span.h"
#include "core/attention_call.h"
#include "core/data_type.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/element.h"
#include "kernels/layout.h"
#include "kernels/layout_cuda.h"
#include "kernels/packed_elements.cuh"
#include "kernels/quantization.h"
#include "kernels/row_kernels.cuh"
#include "kernels/row_task.h"
#include "kernels/streaming_access.cuh"
#include "kernels/task_list.h"

namespace ithaca::kernels {

namespace {

constexpr uint32_t kAllLanes = 0xffffffff;

// The codes of one vector: fast ones for rows that HasFastQuotient.
template <DataType T, CommunicationPrecision P, bool kFast>
__device__ __forceinline__ void StoreCodes(const uint4& vector, float scale,
                                           float reciprocal, uint8_t* codes) {
  using Vector = RowVector<T>;
  const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
  float q[Vector::kElements];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    PackedElements<T>::Widen(words[i], q + i * Vector::kPerWord);
  }
#pragma unroll
  for (int i = 0; i < Vector::kElements; ++i) {
    q[i] = kFast ? FastQuotient(q[i], scale, reciprocal) : q[i] / scale;
  }
  uint32_t code_words[Vector::kCodeWords];
#pragma unroll
  for (int i = 0; i < Vector::kCodeWords; ++i) {
    code_words[i] = kFast ? PackedCodes<P>::EncodeFast(q + 4 * i)
                          : PackedCodes<P>::Encode(q + 4 * i);
  }
  if constexpr (Vector::kCodeWords == 2) {
    StoreOnce(reinterpret_cast<uint2*>(codes),
              make_uint2(code_words[0], code_words[1]));
  } else {
    StoreOnce(reinterpret_cast<uint32_t*>(codes), code_words[0]);
  }
}

// A row is read once and kept in registers from its amax to its codes.
template <DataType T, CommunicationPrecision P, int kLanes, int kVectors,
          int kRows>
__global__ void __launch_bounds__(kThreadsPerBlock, 8)
    QuantizeWideKernel(const __grid_constant__ TaskList<RowTask> list,
                       uint32_t vectors_per_row) {
  using Slots = RowSlots<kLanes, kVectors, kRows>;
  using Elements = PackedElements<T>;
  constexpr int kElements = RowVector<T>::kElements;
  for (uint32_t tile = blockIdx.x; tile < list.num_tiles; tile += gridDim.x) {
    const auto place = list.Find(tile);
    if (!place.exists) continue;
    const RowTask& task = list.tasks[place.task];
    const uint32_t own_tile = place.tile;

    uint4 data[kRows][kVectors];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row = Slots::Row(own_tile, r);
      const auto* vectors = reinterpret_cast<const uint4*>(
          task.elements + LocateRow(task, vectors_per_row * 16, row));
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint32_t column = Slots::Column(v);
        data[r][v] = make_uint4(0, 0, 0, 0);
        if (row < task.num_rows && column < vectors_per_row) {
          data[r][v] = LoadOnce(vectors + column);
        }
      }
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint32_t largest = 0;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint4& vector = data[r][v];
        for (const uint32_t word : {vector.x, vector.y, vector.z, vector.w}) {
          largest = Elements::Max(largest, Elements::Magnitudes(word));
        }
      }
#pragma unroll
      for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
        largest =
            Elements::Max(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
      }
      const uint32_t row = Slots::Row(own_tile, r);
      if (row >= task.num_rows) continue;
      const float scale = Codec<P>::Scale(Elements::Largest(largest));
      if (threadIdx.x % kLanes == 0) task.scales[row] = scale;

      uint8_t* codes = task.codes + int64_t{row} * vectors_per_row * kElements;
      if (T != DataType::kFloat32 && HasFastQuotient(scale)) {
        const float reciprocal = 1.0f / scale;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const uint32_t column = Slots::Column(v);
          if (column >= vectors_per_row) continue;
          StoreCodes<T, P, true>(data[r][v], scale, reciprocal,
                                 codes + column * kElements);
        }
      } else {
        const float divisor = Divisor(scale);
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const uint32_t column = Slots::Column(v);
          if (column >= vectors_per_row) continue;
          StoreCodes<T, P, false>(data[r][v], divisor, 0,
                                  codes + column * kElements);
        }
      }
    }
  }
}

// A warp takes a row, element by element.
template <DataType T, CommunicationPrecision P>
__global__ void __launch_bounds__(kThreadsPerBlock)
    QuantizeNarrowKernel(const __grid_constant__ TaskList<RowTask> list,
                         uint32_t head_dim) {
  using Storage = typename Element<T>::Storage;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t tile = blockIdx.x; tile < list.num_tiles; tile += gridDim.x) {
    const auto place = list.Find(tile);
    if (!place.exists) continue;
    const RowTask& task = list.tasks[place.task];
    const uint32_t row = NarrowSlots::Row(place.tile, 0);
    // The same for the whole warp, as all its lanes share a row.
    if (row >= task.num_rows) continue;
    const auto* elements = reinterpret_cast<const Storage*>(
        task.elements + LocateRow(task, head_dim * sizeof(Storage), row));

    Storage data[kNarrowElements];
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < kNarrowElements; ++i) {
      const uint32_t d = lane + 32 * i;
      data[i] = d < head_dim ? elements[d] : Storage{0};
      largest = max(largest, uint32_t{data[i]} & Element<T>::kAbsMask);
    }
    largest = __reduce_max_sync(kAllLanes, largest);
    const float scale =
        Codec<P>::Scale(Element<T>::Widen(static_cast<Storage>(largest)));
    const float divisor = Divisor(scale);
    if (lane == 0) task.scales[row] = scale;
#pragma unroll
    for (int i = 0; i < kNarrowElements; ++i) {
      const uint32_t d = lane + 32 * i;
      if (d >= head_dim) continue;
      task.codes[int64_t{row} * head_dim + d] =
          Codec<P>::Encode(Element<T>::Widen(data[i]) / divisor);
    }
  }
}

template <DataType T, CommunicationPrecision P>
cudaError_t Quantize(const LayoutParams& params,
                     absl::Span<const QuantizeJob> jobs, cudaStream_t stream,
                     const CudaLaunchOptions& options) {
  const int64_t vectors = params.head_dim / RowVector<T>::kElements;
  const auto wide = [&](const TaskList<RowTask>& list) {
    return DispatchGeometry<T>(
        WideGeometry(vectors), [&]<int kLanes, int kVectors, int kRows>() {
          return LaunchTiles(QuantizeWideKernel<T, P, kLanes, kVectors, kRows>,
                             list, stream, options,
                             static_cast<uint32_t>(vectors));
        });
  };
  const auto narrow = [&](const TaskList<RowTask>& list) {
    return LaunchTiles(QuantizeNarrowKernel<T, P>, list, stream, options,
                       static_cast<uint32_t>(params.head_dim));
  };
  const auto wide_tiles = [vectors](const RowTask& task) {
    return RowTiles(task, WideGeometry(vectors));
  };
  return LaunchRows(params, jobs, /*writes_elements=*/false, wide, wide_tiles,
                    narrow);
}

}  // namespace

cudaError_t QuantizeHeadsCuda(const LayoutParams& params,
                              absl::Span<const QuantizeJob> jobs,
                              cudaStream_t stream,
                              const CudaLaunchOptions& options) {
  return DispatchDataType(params.dtype, [&]<DataType T>() {
    return params.precision == CommunicationPrecision::kInt8
               ? Quantize<T, CommunicationPrecision::kInt8>(params, jobs,
                                                            stream, options)
               : Quantize<T, CommunicationPrecision::kFp8E4m3>(params, jobs,
                                                               stream, options);
  });
}

}  // namespace ithaca::kernels
