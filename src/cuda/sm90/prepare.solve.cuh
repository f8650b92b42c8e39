// (I + A)^-1 of a 32 x 32 strictly lower triangular A, by one warp: forward substitution inside
// blocks of 16 rows, then products of blocks. A series in powers of A would not survive repeated
// keys.
#pragma once

#include "cuda/ptx/tf32.cuh"
#include "cuda/sm90/scan.shared.h"

namespace linattn::cuda::sm90 {

// What distinguishes the addresses of 16-byte units in a swizzled row, whose numbers differ in
// these bits: where unit u lies at x, unit u ^ y lies at x ^ unit_bits(y).
__device__ __forceinline__ constexpr int unit_bits(int y) { return y << 4; }

// A, and what becomes of it, in fp32. 16-byte units are swizzled in pairs, so that eight rows of
// eight bytes a lane meet no bank twice.
__device__ __forceinline__ int byte_of_a(int row, int column) {
  const int unit = (column / 4) ^ ((row & 3) << 1 | (row & 4) >> 2);
  return row * kChunk * 4 + unit * 16 + column % 4 * 4;
}
__device__ __forceinline__ float* a_at(char* square, int row, int column) {
  return reinterpret_cast<float*>(square + byte_of_a(row, column));
}

// A 16 x 16 block X^T as accumulators of two tiles: [tile j][e]: rows (columns of X) l/4, +8 with
// e & 2; columns (rows of X) 8j + 2 (l%4) + (e & 1).
struct Block {
  float x[2][4];
};

// The block whose transpose begins at (row0, column0) of the square, multiples of 16.
__device__ __forceinline__ Block load_transposed(char* square, int row0, int column0, int lane) {
  const int g = lane / 4, t = lane % 4;
  const int of_lane[2] = {byte_of_a(2 * t, g), byte_of_a(2 * t + 1, g)};
  Block b;
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      b.x[j][e] = *reinterpret_cast<const float*>(
          square + (of_lane[e & 1] ^ unit_bits(column0 / 4 + (e & 2))) +
          (row0 + 8 * j) * kChunk * 4);
  return b;
}

__device__ __forceinline__ float2* row_pair(char* square, int row0, int column0, int lane, int j,
                                            int side) {
  const int of_lane = byte_of_a(lane / 4, lane % 4 * 2);
  return reinterpret_cast<float2*>(square + (of_lane ^ unit_bits(column0 / 4 + 2 * j)) +
                                   (row0 + side * 8) * kChunk * 4);
}

// fp32 numbers as sums of two tf32 numbers: about 21 bits of a product from three.
struct Split {
  uint32_t high, low;
  __device__ __forceinline__ explicit Split(float x)
      : high(ptx::float_bits(x)), low(ptx::float_bits(x - ptx::tf32_value(high))) {}
};

// X^T M^T for the block M that begins at (row0, column0).
__device__ __forceinline__ Block multiply(const Block& block, char* square, int row0, int column0,
                                          int lane) {
  // Apart, so that no product waits for another.
  Block high_high = {}, low_high = {}, high_low = {};
#pragma unroll
  for (int s = 0; s < 2; ++s) {
    const Split a0(block.x[s][0]), a1(block.x[s][2]), a2(block.x[s][1]), a3(block.x[s][3]);
    const uint32_t high[4] = {a0.high, a1.high, a2.high, a3.high};
    const uint32_t low[4] = {a0.low, a1.low, a2.low, a3.low};
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float2 two = *row_pair(square, row0, column0, lane, s, j);
      const Split b0(two.x), b1(two.y);
      ptx::mma_m16n8k8_tf32(high_high.x[j], high, b0.high, b1.high);
      ptx::mma_m16n8k8_tf32(low_high.x[j], low, b0.high, b1.high);
      ptx::mma_m16n8k8_tf32(high_low.x[j], high, b0.low, b1.low);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) high_high.x[j][e] += low_high.x[j][e] + high_low.x[j][e];
  return high_high;
}

__device__ __forceinline__ Block negative(const Block& b) {
  Block minus;
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) minus.x[j][e] = -b.x[j][e];
  return minus;
}

// Inverses of both diagonal blocks: lanes 0..15 have a column each of the first, 16..31 of the
// second.
__device__ __forceinline__ void invert_diagonals(char* square, int lane) {
  const int row0 = lane & 16, column = lane & 15;
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    float sum[2] = {i == column ? 1.0f : 0.0f, 0.0f};
#pragma unroll
    for (int m = 0; m < i; m += 4) {
      const float4 a = *reinterpret_cast<const float4*>(a_at(square, row0 + i, row0 + m));
      sum[0] = fmaf(-a.x, x[m], sum[0]);
      if (m + 1 < i) sum[1] = fmaf(-a.y, x[m + 1], sum[1]);
      if (m + 2 < i) sum[0] = fmaf(-a.z, x[m + 2], sum[0]);
      if (m + 3 < i) sum[1] = fmaf(-a.w, x[m + 3], sum[1]);
    }
    x[i] = sum[0] + sum[1];
    if (i % 4 == 3) __syncwarp();  // keeps later loads, and the registers they take, behind
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) *a_at(square, row0 + i, row0 + column) = x[i];
  __syncwarp();
}

// The blocks of the inverse X, transposed: with D the inverses of the diagonal blocks, X_00 = D_0,
// X_11 = D_1, X_10 = -D_1 A_10 D_0.
struct Inverse {
  Block first, second, below;
};

__device__ __forceinline__ Inverse invert(char* square, int lane) {
  invert_diagonals(square, lane);
  Inverse x;
  x.first = load_transposed(square, 0, 0, lane);
  x.second = load_transposed(square, 16, 16, lane);
  x.below = x.first;
  // D_0^T A_10^T, then that times D_1^T.
#pragma unroll 1
  for (int m = 0; m < 2; ++m) x.below = multiply(x.below, square, 16, 16 * m, lane);
  x.below = negative(x.below);
  return x;
}

}  // namespace linattn::cuda::sm90
