// T and P in the scan's memory image.
#pragma once

#include "cuda/portable/chunk.cuh"
#include "cuda/ptx/copy.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/sm90/prepare.solve.cuh"

namespace linattn::cuda::sm90 {

__device__ __forceinline__ float* square_at(char* square, int row, int column) {
  return reinterpret_cast<float*>(square + SquareTile::at(row, square_column(column)));
}

__device__ __forceinline__ void zero_upper_block(char* square, int lane) {
#pragma unroll
  for (int i = lane; i < 16 * 4; i += 32)
    *reinterpret_cast<float4*>(square + SquareTile::at(i / 4, 16 + i % 4 * 4)) =
        make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

// Block (i, j) of T, `scale(column)` times X, as two bf16 numbers an element.
template <class Scale>
__device__ __forceinline__ void store_t_block(uint32_t t, const Block& x, int i, int j, int lane,
                                              const Scale& scale) {
  uint32_t high[4], low[4];
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const float of_column = scale(16 * j + lane / 4 + 8 * side);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const float x0 = x.x[tile][2 * side] * of_column, x1 = x.x[tile][2 * side + 1] * of_column;
      float y0, y1;
      high[2 * tile + side] = chunk::pack<true>(x0, x1);
      chunk::unpack<true>(high[2 * tile + side], y0, y1);
      low[2 * tile + side] = chunk::pack<true>(x0 - y0, x1 - y1);
    }
  }
  // Tiles of 8 x 8 in the order of `high`: a lane says where a row of one begins.
  const uint32_t at = t + SplitTile::at(16 * i + (lane & 16) / 2 + (lane & 7), 16 * j + (lane & 8));
  ptx::stmatrix_x4_trans(at, high);
  ptx::stmatrix_x4_trans(at ^ unit_bits(kChunk / 8), low);
}

template <class Scale>
__device__ __forceinline__ void store_t(char* square, const Inverse& x, int lane,
                                        const Scale& scale) {
  const uint32_t t = ptx::shared_address(square);
  store_t_block(t, x.first, 0, 0, lane, scale);
  store_t_block(t, x.below, 1, 0, lane, scale);
  store_t_block(t, x.second, 1, 1, lane, scale);
#pragma unroll
  for (int i = lane; i < 16 * 4; i += 32)
    *reinterpret_cast<float4*>(square + SplitTile::at(i / 4, 16 + i % 2 * 8 + (i & 2) * 16)) =
        make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

}  // namespace linattn::cuda::sm90
