// Exchange between the lanes of a warp, all 32 of which take part in every call, and barriers.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-shfl-sync
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float shuffle_xor(float x, int mask) {
  return __shfl_xor_sync(kAllLanes, x, mask);
}

__device__ __forceinline__ double shuffle_xor(double x, int mask) {
  return __shfl_xor_sync(kAllLanes, x, mask);
}

__device__ __forceinline__ float shuffle(float x, int source_lane) {
  return __shfl_sync(kAllLanes, x, source_lane);
}

// The lowest and the highest |x| of the lanes', none of them NaN: their bits have the same order.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-redux-sync
__device__ __forceinline__ float lowest_magnitude(float x) {
  return __uint_as_float(__reduce_min_sync(kAllLanes, __float_as_uint(fabsf(x))));
}
__device__ __forceinline__ float highest_magnitude(float x) {
  return __uint_as_float(__reduce_max_sync(kAllLanes, __float_as_uint(fabsf(x))));
}

// The same numbers, about which ptxas knows nothing: what is computed from them stays where it is
// written, in ordinary registers. (ptxas sees through an empty asm; not through an exchange.)
__device__ __forceinline__ int opaque(int x) { return __shfl_sync(kAllLanes, x, 0); }

// threadIdx.x, from the special register every time.
__device__ __forceinline__ uint32_t thread_of_cta() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

__device__ __forceinline__ float opaque(float x) {
  asm volatile("" : "+f"(x));
  return x;
}

__device__ __forceinline__ void sync_warp() { __syncwarp(); }

// `count` threads meet at one of the CTA's barriers, of which 0 is sync_cta's.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
__device__ __forceinline__ void sync_threads(int barrier, int count) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory");
}

// All warps of the CTA take part.
__device__ __forceinline__ void sync_cta() { __syncthreads(); }

}  // namespace linattn::cuda::ptx
