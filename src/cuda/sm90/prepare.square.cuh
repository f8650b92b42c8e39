// T and P in the scan's memory image.
#pragma once

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

// Block (i, j) of T, `scale(column)` times X. The tensor cores cut it, which kCut makes up for as
// well as rounding would.
template <class Scale>
__device__ __forceinline__ void store_t_block(char* square, const Block& x, int i, int j, int lane,
                                              const Scale& scale) {
  const int g = lane / 4, t = lane % 4;
  const int of_lane[2] = {SquareTile::at(2 * t, square_column(g)),
                          SquareTile::at(2 * t + 1, square_column(g))};
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const float of_column = kCut * scale(16 * j + g + 8 * side);
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        *reinterpret_cast<float*>(square + (of_lane[e] ^ unit_bits(4 * j + 2 * side)) +
                                  (16 * i + 8 * tile) * tile::kSwizzleBytes) =
            x.x[tile][2 * side + e] * of_column;
  }
}

template <class Scale>
__device__ __forceinline__ void store_t(char* square, const Inverse& x, int lane,
                                        const Scale& scale) {
  store_t_block(square, x.first, 0, 0, lane, scale);
  store_t_block(square, x.below, 1, 0, lane, scale);
  store_t_block(square, x.second, 1, 1, lane, scale);
  zero_upper_block(square, lane);
}

}  // namespace linattn::cuda::sm90
