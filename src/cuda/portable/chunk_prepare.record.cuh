// What both kinds of preparation do: write a chunk's squares, solve.
#pragma once

#include "cuda/portable/chunk_place.cuh"

namespace linattn::cuda::chunk {

template <bool kBf16>
__device__ __forceinline__ uint16_t narrow(float x) {
  return static_cast<uint16_t>(pack<kBf16>(x, 0.0f));
}

__device__ __forceinline__ uint16_t* square_at(char* square, int row, int column) {
  return reinterpret_cast<uint16_t*>(square + swizzled_square(row, column / 8)) + column % 8;
}

template <bool kBf16>
__device__ __forceinline__ void store_split(char* square, char* square_low, int row, int column,
                                            float x) {
  uint32_t high, low;
  pack_split<kBf16>(x, 0.0f, high, low);
  *square_at(square, row, column) = static_cast<uint16_t>(high);
  *square_at(square_low, row, column) = static_cast<uint16_t>(low);
}

// An element of P: split for the delta update, where the record has room for the low part.
template <bool kBf16>
__device__ __forceinline__ void store_p(char* record, const ChunkRecord& layout, int row,
                                        int column, float x) {
  if (layout.delta)
    store_split<kBf16>(record + layout.p(), record + layout.p_low(), row, column, x);
  else
    *square_at(record + layout.p(), row, column) = narrow<kBf16>(x);
}

// The upper right block of P, which no product touches.
__device__ __forceinline__ void clear_p(char* record, const ChunkRecord& layout, int thread) {
  if (thread >= 32) return;
  const int at = swizzled_square(thread / 2, 2 + thread % 2);
  *reinterpret_cast<uint4*>(record + layout.p() + at) = make_uint4(0, 0, 0, 0);
  if (layout.delta)
    *reinterpret_cast<uint4*>(record + layout.p_low() + at) = make_uint4(0, 0, 0, 0);
}

// T = (I + A)^-1 by forward substitution, one column a lane; written as T diag(beta). A series in
// powers of A would not survive repeated keys.
template <bool kBf16>
__device__ __forceinline__ void solve(const float (&a)[kChunk][kChunk + 4], const float* beta,
                                      char* record, int lane) {
  float x[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sum[4] = {i == lane ? 1.0f : 0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int m = 0; m < i; ++m) sum[m % 4] = fmaf(-a[i][m], x[m], sum[m % 4]);
    x[i] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
  const float scale = beta[lane];
  // The swizzle takes a column to one of four places of a row.
  constexpr ChunkRecord layout{64, false, true};  // squares lie alike in all records of the update
  uint16_t* column[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    column[i] = square_at(record + layout.t(), 2 * i, lane) - 2 * i * kChunk;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    uint32_t high, low;
    pack_split<kBf16>(x[i] * scale, 0.0f, high, low);
    uint16_t* to = column[i / 2 % 4] + i * kChunk;
    to[0] = static_cast<uint16_t>(high);
    to[(layout.t_low() - layout.t()) / 2] = static_cast<uint16_t>(low);
  }
}

}  // namespace linattn::cuda::chunk
