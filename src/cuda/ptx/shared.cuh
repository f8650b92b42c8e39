// fp32 numbers of shared memory by their 32-bit address.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-ld
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

__device__ __forceinline__ float load_shared(uint32_t address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ void load_shared(uint32_t address, float& x0, float& x1) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x0), "=f"(x1) : "r"(address) : "memory");
}

}  // namespace linattn::cuda::ptx
