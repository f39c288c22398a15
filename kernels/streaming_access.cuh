#ifndef ITHACA_KERNELS_STREAMING_ACCESS_CUH_
#define ITHACA_KERNELS_STREAMING_ACCESS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

namespace ithaca::kernels {

// Reads memory that the kernel reads once and nobody writes meanwhile: by the
// read-only path, without taking room in L1.
__device__ __forceinline__ uint4 LoadOnce(const uint4* address) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint2 LoadOnce(const uint2* address) {
  uint2 value;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "l"(address)
               : "memory");
  return value;
}

// Neighbouring threads' narrow reads share sectors: L1 helps.
__device__ __forceinline__ uint32_t LoadOnce(const uint32_t* address) {
  return __ldg(address);
}

__device__ __forceinline__ uint16_t LoadOnce(const uint16_t* address) {
  return __ldg(address);
}

// Writes memory that the kernel does not read, nor write, again: first to leave
// the L2 cache, so that it does not push out what is still to be read.
__device__ __forceinline__ void StoreOnce(uint4* address, const uint4& value) {
  __stcs(address, value);
}

__device__ __forceinline__ void StoreOnce(uint2* address, const uint2& value) {
  __stcs(address, value);
}

// Neighbouring threads' narrow writes share sectors.
__device__ __forceinline__ void StoreOnce(uint32_t* address, uint32_t value) {
  *address = value;
}

__device__ __forceinline__ void StoreOnce(uint16_t* address, uint16_t value) {
  *address = value;
}

}  // namespace ithaca::kernels

#endif  // ITHACA_KERNELS_STREAMING_ACCESS_CUH_
