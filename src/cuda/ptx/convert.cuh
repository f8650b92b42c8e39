// Pairs of 16-bit floats in one register, low half first, to and from fp32.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#data-movement-and-conversion-instructions-cvt
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

__device__ __forceinline__ void unpack_bf16(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Pairs of products, rounded once. sm_90 and newer.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#half-precision-floating-point-instructions-mul
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t x, uint32_t y) {
  uint32_t pair;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(x), "r"(y));
  return pair;
}

__device__ __forceinline__ void unpack_f16(uint32_t pair, float& low, float& high) {
  asm("{.reg .f16 l, h;\n mov.b32 {l, h}, %2;\n cvt.f32.f16 %0, l;\n cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(pair));
}

__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace linattn::cuda::ptx
