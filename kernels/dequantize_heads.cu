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

// The codes of one vector.
template <DataType T>
struct CodeVector {
  uint32_t words[RowVector<T>::kCodeWords];
};

template <DataType T>
__device__ __forceinline__ CodeVector<T> LoadCodes(const uint8_t* codes) {
  if constexpr (RowVector<T>::kCodeWords == 2) {
    const uint2 words = LoadOnce(reinterpret_cast<const uint2*>(codes));
    return {{words.x, words.y}};
  } else {
    return {{LoadOnce(reinterpret_cast<const uint32_t*>(codes))}};
  }
}

template <DataType T, CommunicationPrecision P>
__device__ __forceinline__ uint4 DecodeVector(const CodeVector<T>& codes,
                                              float scale) {
  using Vector = RowVector<T>;
  float x[Vector::kElements];
#pragma unroll
  for (int i = 0; i < Vector::kCodeWords; ++i) {
    PackedCodes<P>::Decode(codes.words[i], x + 4 * i);
  }
#pragma unroll
  for (int i = 0; i < Vector::kElements; ++i) x[i] *= scale;
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = PackedElements<T>::Round(x + i * Vector::kPerWord);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

template <DataType T, CommunicationPrecision P, int kLanes, int kVectors,
          int kRows>
__global__ void __launch_bounds__(kThreadsPerBlock, 4)
    DequantizeWideKernel(const __grid_constant__ TaskList<RowTask> list,
                         uint32_t vectors_per_row) {
  using Slots = RowSlots<kLanes, kVectors, kRows>;
  constexpr int kElements = RowVector<T>::kElements;
  for (uint32_t tile = blockIdx.x; tile < list.num_tiles; tile += gridDim.x) {
    const int index = list.Find(tile);
    const RowTask& task = list.tasks[index];
    const uint32_t own_tile = tile - list.first_tile[index];

    CodeVector<T> codes[kRows][kVectors] = {};
    float scales[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row = Slots::Row(own_tile, r);
      if (row >= task.num_rows) continue;
      const uint8_t* row_codes =
          task.codes + int64_t{row} * vectors_per_row * kElements;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint32_t column = Slots::Column(v);
        if (column >= vectors_per_row) continue;
        codes[r][v] = LoadCodes<T>(row_codes + column * kElements);
      }
      scales[r] = __ldg(task.scales + row);
    }

#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row = Slots::Row(own_tile, r);
      if (row >= task.num_rows) continue;
      auto* vectors = reinterpret_cast<uint4*>(
          task.elements + LocateRow(task, vectors_per_row * 16, row));
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const uint32_t column = Slots::Column(v);
        if (column >= vectors_per_row) continue;
        vectors[column] = DecodeVector<T, P>(codes[r][v], scales[r]);
      }
    }
  }
}

// A warp takes a row, element by element.
template <DataType T, CommunicationPrecision P>
__global__ void __launch_bounds__(kThreadsPerBlock)
    DequantizeNarrowKernel(const __grid_constant__ TaskList<RowTask> list,
                           uint32_t head_dim) {
  using Storage = typename Element<T>::Storage;
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t tile = blockIdx.x; tile < list.num_tiles; tile += gridDim.x) {
    const int index = list.Find(tile);
    const RowTask& task = list.tasks[index];
    const uint32_t row = NarrowSlots::Row(tile - list.first_tile[index], 0);
    if (row >= task.num_rows) continue;
    const uint8_t* codes = task.codes + int64_t{row} * head_dim;
    auto* elements = reinterpret_cast<Storage*>(
        task.elements + LocateRow(task, head_dim * sizeof(Storage), row));
    const float scale = task.scales[row];
#pragma unroll
    for (int i = 0; i < kNarrowElements; ++i) {
      const uint32_t d = lane + 32 * i;
      if (d >= head_dim) continue;
      elements[d] = Element<T>::Round(Codec<P>::Decode(codes[d]) * scale);
    }
  }
}

template <DataType T, CommunicationPrecision P>
cudaError_t Dequantize(const LayoutParams& params,
                       absl::Span<const DequantizeJob> jobs,
                       cudaStream_t stream, const CudaLaunchOptions& options) {
  const auto wide = [&](const TaskList<RowTask>& list) {
    const int64_t vectors = params.head_dim / RowVector<T>::kElements;
    return DispatchGeometry<T>(
        WideGeometry(vectors), [&]<int kLanes, int kVectors, int kRows>() {
          return LaunchTiles(
              DequantizeWideKernel<T, P, kLanes, kVectors, kRows>, list, stream,
              options, static_cast<uint32_t>(vectors));
        });
  };
  const auto narrow = [&](const TaskList<RowTask>& list) {
    return LaunchTiles(DequantizeNarrowKernel<T, P>, list, stream, options,
                       static_cast<uint32_t>(params.head_dim));
  };
  return LaunchRows<T>(params, jobs, wide, narrow);
}

}  // namespace

cudaError_t DequantizeHeadsCuda(const LayoutParams& params,
                                absl::Span<const DequantizeJob> jobs,
                                cudaStream_t stream,
                                const CudaLaunchOptions& options) {
  return DispatchDataType(params.dtype, [&]<DataType T>() {
    return params.precision == CommunicationPrecision::kInt8
               ? Dequantize<T, CommunicationPrecision::kInt8>(params, jobs,
                                                              stream, options)
               : Dequantize<T, CommunicationPrecision::kFp8E4m3>(
                     params, jobs, stream, options);
  });
}

}  // namespace ithaca::kernels
