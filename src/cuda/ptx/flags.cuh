// Counters in global memory by which CTAs of one kernel wait for each other.
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

// Adds 1 behind this thread's earlier accesses, and those that barriers have ordered before them.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-red
__device__ __forceinline__ void count_up(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// What was written before the counter came to this is then visible.
__device__ __forceinline__ uint32_t count_of(const uint32_t* counter) {
  uint32_t now;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
  return now;
}

// Before asking again.
__device__ __forceinline__ void pause() { asm volatile("nanosleep.u32 64;"); }

__device__ __forceinline__ void wait_for_count(const uint32_t* counter, uint32_t count) {
  while (count_of(counter) < count) pause();
}

// The counter's old value; no order with other accesses.
__device__ __forceinline__ uint32_t take_places(uint32_t* counter, uint32_t count) {
  return atomicAdd(counter, count);
}

// Orders this thread's ordinary accesses of any memory before later ones of the copy engine.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
__device__ __forceinline__ void fence_async_proxy_everywhere() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

}  // namespace linattn::cuda::ptx
