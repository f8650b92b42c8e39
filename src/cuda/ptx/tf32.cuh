// fp32 numbers of which the tensor cores use 10 bits of the mantissa.
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

__device__ __forceinline__ uint32_t float_bits(float x) { return __float_as_uint(x); }

__device__ __forceinline__ float bits_float(uint32_t x) { return __uint_as_float(x); }

// The bits that the tensor cores see.
__device__ __forceinline__ float tf32_value(uint32_t x) { return __uint_as_float(x & 0xffffe000u); }

// d += a b, m16n8k8. a: rows l/4 (+8 in a[1], a[3]), k l%4, 4 + l%4 in a[2], a[3]; b: k l%4,
// 4 + l%4, column l/4.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-mma
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace linattn::cuda::ptx
