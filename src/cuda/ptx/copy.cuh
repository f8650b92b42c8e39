// Asynchronous copies of 16 bytes from global to shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cp-async
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

// The dynamic shared memory of the CTA.
__device__ __forceinline__ char* dynamic_shared() {
  extern __shared__ __align__(16) char linattn_dynamic_shared[];
  return linattn_dynamic_shared;
}

// The same, where the copy engine or the tensor cores need it at a multiple of 1024 bytes.
__device__ __forceinline__ char* dynamic_shared_1024() {
  extern __shared__ __align__(1024) char linattn_dynamic_shared_1024[];
  return linattn_dynamic_shared_1024;
}

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Two numbers of shared memory, loaded where it is written: registers are not taken before.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
__device__ __forceinline__ float2 load_pair(uint32_t address) {
  float2 pair;
  asm volatile("ld.volatile.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}

// Copies 16 bytes, or with `exists` false reads nothing and writes zeros.
__device__ __forceinline__ void copy_16_async(uint32_t to, const void* from, bool exists = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's latest groups are in flight.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace linattn::cuda::ptx
