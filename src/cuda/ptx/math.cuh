// A widening multiply-add, which the compiler alone builds from four instructions; base-2
// exponential and logarithm, reciprocal and inverse root of the special-function unit; denormals
// are zero. https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

__device__ __forceinline__ int64_t mad_wide(int32_t a, int32_t b, int64_t c) {
  int64_t d;
  asm("mad.wide.s32 %0, %1, %2, %3;" : "=l"(d) : "r"(a), "r"(b), "l"(c));
  return d;
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Absolute error up to 2^-22 for x in (0.5, 2), so no use where log(1 + x) of a small x is asked.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float inverse_root_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace linattn::cuda::ptx
