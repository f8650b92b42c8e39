// What preparation and scan share: where chunks lie, and tiles of 16-bit rows in shared memory.
#pragma once

#include <cstdint>

#include "cuda/portable/chunk.params.h"
#include "cuda/portable/tensors.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/mma.cuh"

namespace linattn::cuda::chunk {

// Below this a decay is zero in fp32; -inf would turn differences of sums into NaN.
inline constexpr float kLowestLogDecay = -100.0f;
inline constexpr float kLog2E = 1.4426950408889634f;

__device__ __forceinline__ uint32_t divide(uint32_t x, const FastDivisor& d) {
  return (__umulhi(x, d.magic) + x) >> d.shift;
}

template <bool kBf16>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  return kBf16 ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high);
}

template <bool kBf16>
__device__ __forceinline__ void unpack(uint32_t pair, float& low, float& high) {
  if constexpr (kBf16)
    ptx::unpack_bf16(pair, low, high);
  else
    ptx::unpack_f16(pair, low, high);
}

// x as a sum of two narrow numbers: 16 bits of mantissa in bf16, 22 in fp16.
template <bool kBf16>
__device__ __forceinline__ void pack_split(float x0, float x1, uint32_t& high, uint32_t& low) {
  high = pack<kBf16>(x0, x1);
  float y0, y1;
  unpack<kBf16>(high, y0, y1);
  low = pack<kBf16>(x0 - y0, x1 - y1);
}

template <class Params>
__device__ __forceinline__ int64_t first_chunk(const Params& p, int64_t n) {
  return p.chunk_begin == nullptr ? n * p.chunks_a_sequence : p.chunk_begin[n];
}

// Byte of 16-byte unit `unit` of row `row` in a swizzled tile of rows of kDim elements.
template <int kDim>
__device__ __forceinline__ int swizzled(int row, int unit) {
  return row * kDim * 2 + ((unit ^ (row & 7)) << 4);
}

// The same in a square of 32x32 elements: the 8 rows of an ldmatrix lie in different banks.
__device__ __forceinline__ int swizzled_square(int row, int unit) {
  return row * kChunk * 2 + ((unit ^ (row / 2 & 3)) << 4);
}

// The four 8x8 tiles of an A operand: 16 rows, 16 channels from 16 * kk.
template <int kDim>
__device__ __forceinline__ void load_a(uint32_t (&a)[4], uint32_t tile, int row0, int kk,
                                       int lane) {
  const int m = lane / 8;
  ptx::ldmatrix_x4(a, tile + swizzled<kDim>(row0 + (m & 1) * 8 + lane % 8, kk * 2 + (m >> 1)));
}

// The B operands of two n-tiles: 16 rows are the n axis, 16 channels from 16 * kk the k axis.
template <int kDim>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], uint32_t tile, int row0, int kk,
                                       int lane) {
  const int m = lane / 8;
  ptx::ldmatrix_x4(b, tile + swizzled<kDim>(row0 + (m >> 1) * 8 + lane % 8, kk * 2 + (m & 1)));
}

// The same with rows as the k axis and channels from 16 * jj as the n axis.
template <int kDim>
__device__ __forceinline__ void load_b_trans(uint32_t (&b)[4], uint32_t tile, int row0, int jj,
                                             int lane) {
  const int m = lane / 8;
  ptx::ldmatrix_x4_trans(b,
                         tile + swizzled<kDim>(row0 + (m & 1) * 8 + lane % 8, jj * 2 + (m >> 1)));
}

// B operands of n-tiles 2i, 2i+1 and k block b of a 32x32 matrix stored [n][k].
__device__ __forceinline__ void load_b_square(uint32_t (&b)[4], uint32_t square, int i, int block,
                                              int lane) {
  const int m = lane / 8;
  const int row = i * 16 + (m >> 1) * 8 + lane % 8;
  ptx::ldmatrix_x4(b, square + swizzled_square(row, block * 2 + (m & 1)));
}

// 32 rows of q or k into a swizzled tile; rows and channels that do not exist become zero.
template <int kDim>
__device__ __forceinline__ void load_rows(const void* data, int64_t offset, int64_t stride_t,
                                          int rows, int dim, bool vectors, char* tile, int thread,
                                          int threads) {
  constexpr int kUnits = kDim / 8;
  const int unit = thread % kUnits, step = threads / kUnits;
  const auto* base = static_cast<const uint16_t*>(data) + offset;
  int row = thread / kUnits;
  const auto* from = base + row * stride_t + unit * 8;
  if (vectors) {
    const int64_t stride = step * stride_t;
    const uint32_t to = ptx::shared_address(tile);
    const int present = unit * 8 < dim ? rows : 0;
#pragma unroll 2
    for (; row < kChunk; row += step, from += stride)
      ptx::copy_16_async(to + swizzled<kDim>(row, unit), row < present ? from : base,
                         row < present);
    return;
  }
  for (; row < kChunk; row += step, from += step * stride_t) {
    auto* elements = reinterpret_cast<uint16_t*>(tile + swizzled<kDim>(row, unit));
#pragma unroll
    for (int e = 0; e < 8; ++e) elements[e] = row < rows && unit * 8 + e < dim ? from[e] : 0;
  }
}

// One halving of the reductions below: a lane keeps the values whose index has its own bit kWidth.
template <int kWidth, class T, int kCount>
__device__ __forceinline__ void halve(T (&x)[kCount], int lane) {
  const bool upper = (lane & kWidth) != 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    const T send = upper ? x[i] : x[i + kWidth];
    const T keep = upper ? x[i + kWidth] : x[i];
    x[i] = keep + ptx::shuffle_xor(send, kWidth);
  }
}

// Sums over the warp of 32 values a lane: lane l ends with the sum of value l. 31 shuffles.
template <class T>
__device__ __forceinline__ T reduce_32(T (&x)[32], int lane) {
  halve<16>(x, lane);
  halve<8>(x, lane);
  halve<4>(x, lane);
  halve<2>(x, lane);
  halve<1>(x, lane);
  return x[0];
}

// The same for 16 values: lane l ends with the sum of value l % 16.
__device__ __forceinline__ float reduce_16(float (&x)[16], int lane) {
  halve<8>(x, lane);
  halve<4>(x, lane);
  halve<2>(x, lane);
  halve<1>(x, lane);
  return x[0] + ptx::shuffle_xor(x[0], 16);
}

}  // namespace linattn::cuda::chunk
