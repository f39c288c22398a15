#ifndef ITHACA_KERNELS_HOST_DEVICE_H_
#define ITHACA_KERNELS_HOST_DEVICE_H_

// ITHACA_HOST_DEVICE_INLINE marks a function that the CPU and the GPU half of
// this room share, so that both compute the same bits. It is always inlined:
// into device code by nvcc, and by the host compiler into loops that are
// compiled for several instruction sets.

#if defined(__CUDACC__)
#define ITHACA_HOST_DEVICE_INLINE __host__ __device__ __forceinline__
#else
#define ITHACA_HOST_DEVICE_INLINE __attribute__((always_inline)) inline
#endif

#endif  // ITHACA_KERNELS_HOST_DEVICE_H_
