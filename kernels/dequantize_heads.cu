#include <cuda_runtime.h>

#include <cstdint>

#include "absl/types/span.h"
#include "core/attention_call.h"
#include "core/data_type.h"
#include "kernels/cuda_launch.cuh"
#include "kernels/element.h"
#include "kernels/fast_divider.h"
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

// Vectors that a thread has in flight at a time: few, so that there are as many
// threads as a multiprocessor can hold.
constexpr int kVectorsPerThread = 2;
constexpr uint32_t kVectorsPerTile = kThreadsPerBlock * kVectorsPerThread;

// Neighbouring threads take neighbouring vectors, whatever row they are of:
// reads of codes and writes of elements are whole lines.
template <DataType T, CommunicationPrecision P>
__global__ void __launch_bounds__(kThreadsPerBlock, 8)
    DequantizeWideKernel(const __grid_constant__ TaskList<RowTask> list,
                         const FastDivider vectors_per_row) {
  constexpr int kElements = RowVector<T>::kElements;
  for (uint32_t tile = blockIdx.x; tile < list.num_tiles; tile += gridDim.x) {
    const auto place = list.Find(tile);
    if (!place.exists) continue;
    const RowTask& task = list.tasks[place.task];
    const uint32_t num_vectors = task.num_rows * vectors_per_row.divisor();
    const uint32_t first = place.tile * kVectorsPerTile + threadIdx.x;

    CodeVector<T> codes[kVectorsPerThread] = {};
    float scales[kVectorsPerThread] = {};
#pragma unroll
    for (int i = 0; i < kVectorsPerThread; ++i) {
      const uint32_t vector = first + i * kThreadsPerBlock;
      if (vector >= num_vectors) continue;
      codes[i] = LoadCodes<T>(task.codes + int64_t{vector} * kElements);
      scales[i] = __ldg(task.scales + vectors_per_row.Divide(vector));
    }

#pragma unroll
    for (int i = 0; i < kVectorsPerThread; ++i) {
      const uint32_t vector = first + i * kThreadsPerBlock;
      if (vector >= num_vectors) continue;
      const uint32_t row = vectors_per_row.Divide(vector);
      const uint32_t column = vector - row * vectors_per_row.divisor();
      auto* vectors = reinterpret_cast<uint4*>(
          task.elements + LocateRow(task, vectors_per_row.divisor() * 16, row));
      StoreOnce(vectors + column, DecodeVector<T, P>(codes[i], scales[i]));
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
    const auto place = list.Find(tile);
    if (!place.exists) continue;
    const RowTask& task = list.tasks[place.task];
    const uint32_t row = NarrowSlots::Row(place.tile, 0);
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
  const int64_t vectors = params.head_dim / RowVector<T>::kElements;
  const auto wide = [&](const TaskList<RowTask>& list) {
    return LaunchTiles(DequantizeWideKernel<T, P>, list, stream, options,
                       FastDivider(vectors));
  };
  const auto narrow = [&](const TaskList<RowTask>& list) {
    return LaunchTiles(DequantizeNarrowKernel<T, P>, list, stream, options,
                       static_cast<uint32_t>(params.head_dim));
  };
  const auto wide_tiles = [vectors](const RowTask& task) {
    const auto count = task.num_rows * static_cast<uint32_t>(vectors);
    return (count + kVectorsPerTile - 1) / kVectorsPerTile;
  };
  return LaunchRows(params, jobs, /*writes_elements=*/true, wide, wide_tiles,
                    narrow);
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
