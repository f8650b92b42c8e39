// Products of fp32 keys with keys, far beyond fp32. With beta 2 and no decay the update is a
// reflection, which forgets nothing: a key that repeats meets itself with the same error in every
// token, and errors add up (docs/kernels/chunk_portable.md). Integers have no errors.
#pragma once

#include "cuda/portable/chunk_operand.cuh"

namespace linattn::cuda::chunk {

// A row of an fp32 tile becomes integers below 2^27, of a unit that is a power of two; by one warp.
// Products of rows stay below 2^63.
template <int kDim>
__device__ __forceinline__ void make_integers(char* tile, int row, float* unit, int lane) {
  static_assert(kDim <= 128);
  constexpr int kPer = kDim / 32;
  auto* numbers = reinterpret_cast<float*>(tile + number_at<Type::f32, kDim>(row, lane * kPer));
  float x[kPer], largest = 0.0f;
#pragma unroll
  for (int e = 0; e < kPer; ++e) x[e] = numbers[e], largest = fmaxf(largest, fabsf(x[e]));
#pragma unroll
  for (int bit = 16; bit >= 1; bit >>= 1) largest = fmaxf(largest, ptx::shuffle_xor(largest, bit));
  const uint32_t exponent = __float_as_uint(largest) >> 23;
  const uint32_t of_unit = exponent < 30 ? 4 : exponent > 250 ? 224 : exponent - 26;
  const float scale = __uint_as_float((254 - of_unit) << 23);
#pragma unroll
  for (int e = 0; e < kPer; ++e)
    reinterpret_cast<int32_t*>(numbers)[e] = static_cast<int32_t>(rintf(x[e] * scale));
  if (lane == 0) *unit = __uint_as_float(of_unit << 23);
}

// Two rows by two keys of such tiles, in products of their units.
template <int kDim>
__device__ __forceinline__ void multiply_integers(const char* rows, const char* keys, int row,
                                                  int key, double (&x)[2][2]) {
  int64_t sums[2][2] = {};
#pragma unroll 4
  for (int unit = 0; unit < kDim / 4; ++unit) {
    int4 a[2], b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[i] = *reinterpret_cast<const int4*>(rows + unit_at<Type::f32, kDim>(row + i, unit));
      b[i] = *reinterpret_cast<const int4*>(keys + unit_at<Type::f32, kDim>(key + i, unit));
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        sums[i][j] += int64_t{a[i].x} * b[j].x + int64_t{a[i].y} * b[j].y;
        sums[i][j] += int64_t{a[i].z} * b[j].z + int64_t{a[i].w} * b[j].w;
      }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 2; ++j) x[i][j] = static_cast<double>(sums[i][j]);
}

}  // namespace linattn::cuda::chunk
