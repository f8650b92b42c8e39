// Preparation with a gate a channel, whatever the gates in [-inf, 0]. It works with products of
// decays inside blocks of tokens, never with differences of cumulated logarithms, so that every
// factor is at most 1.
#pragma once

#include "cuda/portable/chunk_prepare.channel.cuh"
#include "cuda/sm90/prepare.square.cuh"
#include "cuda/sm90/prepare_channel.inputs.cuh"

namespace linattn::cuda::sm90 {

static_assert(chunk::kSub == kRows);

struct ExactScratch {
  ChannelScratch common;
  // Rows of 128 channels, see chunk::swizzled. 16: k above q of tokens 16.., from token 16's start;
  // keys of tokens ..15, to token 15's end.
  alignas(16) char rows16[2 * kBlock * kDim * 2], keys16[kBlock * kDim * 2];
  // 8, for each block of 16 tokens: k above q of its second half from that half's start; keys of
  // its first half, to that half's end.
  alignas(16) char rows8[2][2 * kRows * kDim * 2], keys8[2][kRows * kDim * 2];
};
inline constexpr int kPrepareExactCtas = 3;  // an SM
inline constexpr int kPrepareExactBytes = static_cast<int>(sizeof(ExactScratch));
static_assert(kPrepareExactCtas * (kPrepareExactBytes + 1024) <= 228 * 1024);

__device__ __forceinline__ void store_scaled(char* to, const float (&x)[kWidth],
                                             const float (&scale)[kWidth]) {
  *reinterpret_cast<uint2*>(to) = make_uint2(ptx::pack_bf16(x[0] * scale[0], x[1] * scale[1]),
                                             ptx::pack_bf16(x[2] * scale[2], x[3] * scale[3]));
}

// The lane's channels of a row.
__device__ __forceinline__ char* lane_of_row(char* tile, int row, int lane) {
  return tile + chunk::swizzled<kDim>(row, lane / 2) + lane % 2 * 8;
}

__device__ __forceinline__ void load_row(const char* rows, int row, int lane, float (&x)[kWidth]) {
  const uint2 four = *reinterpret_cast<const uint2*>(rows + RowsTile::at(row, lane * kWidth));
  ptx::unpack_bf16(four.x, x[0], x[1]), ptx::unpack_bf16(four.y, x[2], x[3]);
}

// Decays in place of what g holds; 1 where there is no token.
__device__ __forceinline__ void find_decays(const Problem& problem, const GateSide& side, int first,
                                            int rows, Gates& x) {
  decays_of(problem, side.bias, side.factor, x);
#pragma unroll
  for (int r = 0; r < kRows; ++r)
#pragma unroll
    for (int e = 0; e < kWidth; ++e) x[r][e] = first + r < rows ? x[r][e] : 1.0f;
}

// Products over the warp's tokens: of every channel, and of the weakest decay of each token.
__device__ __forceinline__ void multiply_decays(ChannelScratch& s, const Gates& d, bool with_bound,
                                                int warp, int lane) {
  float4 total = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    total.x *= d[r][0], total.y *= d[r][1], total.z *= d[r][2], total.w *= d[r][3];
  *reinterpret_cast<float4*>(&s.sums[warp][lane * kWidth]) = total;
  if (!with_bound) return;
  float highest = 1.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    highest *= ptx::highest_magnitude(fmaxf(fmaxf(d[r][0], d[r][1]), fmaxf(d[r][2], d[r][3])));
  if (lane == 0) s.lowest[warp] = -ptx::log2_approx(highest);
}

// The record's rows, and those whose products the blocks below the diagonal are.
template <bool kDelta>
__device__ __forceinline__ void make_exact_rows(ExactScratch& x, const Gates& d, const Gates& k,
                                                const Gates& q, int warp, int lane) {
  ChannelScratch& s = x.common;
  const int block = warp / 2;
  const bool odd = warp % 2 != 0;
  float before16[kWidth], before32[kWidth], after16[kWidth], after32[kWidth];
  {
    float of[4][kWidth], decay[kWidth];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float4 four = *reinterpret_cast<const float4*>(&s.sums[w][lane * kWidth]);
      of[w][0] = four.x, of[w][1] = four.y, of[w][2] = four.z, of[w][3] = four.w;
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      before16[e] = !odd ? 1.0f : block == 0 ? of[0][e] : of[2][e];
      after16[e] = odd ? 1.0f : block == 0 ? of[1][e] : of[3][e];
      before32[e] = before16[e] * (block == 0 ? 1.0f : of[0][e] * of[1][e]);
      after32[e] = after16[e] * (block == 0 ? of[2][e] * of[3][e] : 1.0f);
      decay[e] = of[0][e] * of[1][e] * (of[2][e] * of[3][e]);
    }
    if (warp == 0)
      *reinterpret_cast<float4*>(s.record.decay + lane * kWidth) =
          make_float4(decay[0], decay[1], decay[2], decay[3]);
  }
  const float ones[kWidth] = {1.0f, 1.0f, 1.0f, 1.0f};
  float from_start[kWidth] = {1.0f, 1.0f, 1.0f, 1.0f}, to_end[kWidth] = {1.0f, 1.0f, 1.0f, 1.0f};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = warp * kRows + r, row16 = row % kBlock;
    float row_k[kWidth], row_q[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      from_start[e] *= d[r][e];
      row_k[e] = k[r][e] * from_start[e], row_q[e] = q[r][e] * from_start[e];
    }
    if constexpr (kDelta)
      store_scaled(s.record.rows + RowsTile::at(row, lane * kWidth), row_k, before32);
    store_scaled(s.record.rows + RowsTile::at(kChunk + row, lane * kWidth), row_q, before32);
    if (block == 1) {
      store_scaled(lane_of_row(x.rows16, row16, lane), row_k, before16);
      store_scaled(lane_of_row(x.rows16, kBlock + row16, lane), row_q, before16);
    }
    if (odd) {
      store_scaled(lane_of_row(x.rows8[block], r, lane), row_k, ones);
      store_scaled(lane_of_row(x.rows8[block], kRows + r, lane), row_q, ones);
    }
  }
#pragma unroll
  for (int r = kRows - 1; r >= 0; --r) {
    const int row = warp * kRows + r;
    float key[kWidth];
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      key[e] = k[r][e] * to_end[e];
      to_end[e] *= d[r][e];
    }
    store_scaled(s.record.update + KeysTile::at(row, lane * kWidth), key, after32);
    if (block == 0) store_scaled(lane_of_row(x.keys16, row, lane), key, after16);
    if (!odd) store_scaled(lane_of_row(x.keys8[block], r, lane), key, ones);
  }
}

// An element of A or P, which is not zero.
template <bool kDelta>
__device__ __forceinline__ void store_product(ChannelScratch& s, bool is_a, int i, int j,
                                              float product) {
  if (!is_a)
    *square_at(reinterpret_cast<char*>(s.record.p), i, j) =
        s.row_p[i] * s.record.read_k[j] * product;
  else if (kDelta)
    *a_at(reinterpret_cast<char*>(s.record.t), i, j) = s.row_a[i] * s.record.read_k[j] * product;
}

// P above the diagonal, inside blocks of 16.
__device__ __forceinline__ void zero_product(ChannelScratch& s, int i, int j) {
  *square_at(reinterpret_cast<char*>(s.record.p), i, j) = 0;
}

// Rows 16.. against keys ..15 by warps 0 (A) and 1 (P); by warps 2 and 3 rows 8.. of a block of 16
// against its keys ..7.
template <bool kDelta>
__device__ __forceinline__ void multiply_exact_blocks(ExactScratch& x, int warp, int lane) {
  ChannelScratch& s = x.common;
  const int row = lane / 4, column = lane % 4 * 2;
  if (warp < 2) {
    if (!kDelta && warp == 0) return;
    const uint32_t rows = ptx::shared_address(x.rows16), keys = ptx::shared_address(x.keys16);
    float sums[2][4] = {};
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[4], b[4];
      chunk::load_a<kDim>(a, rows, warp * kBlock, step, lane);
      chunk::load_b<kDim>(b, keys, 0, step, lane);
      ptx::mma_m16n8k16<true>(sums[0], a, b[0], b[1]);
      ptx::mma_m16n8k16<true>(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        store_product<kDelta>(s, warp == 0, kBlock + row + e / 2 * 8, tile * 8 + column + e % 2,
                              sums[tile][e]);
    if (warp == 1) zero_upper_block(reinterpret_cast<char*>(s.record.p), lane);
    return;
  }
  const int block = warp - 2, first = block * kBlock;
  const uint32_t rows = ptx::shared_address(x.rows8[block]);
  const uint32_t keys = ptx::shared_address(x.keys8[block]);
  float sums[4] = {};
#pragma unroll
  for (int step = 0; step < kDim / 16; step += 2) {
    uint32_t a[4], b[4];
    ptx::ldmatrix_x4(b, keys + chunk::swizzled<kDim>(lane % 8, step * 2 + lane / 8));
    chunk::load_a<kDim>(a, rows, 0, step, lane);
    ptx::mma_m16n8k16<true>(sums, a, b[0], b[1]);
    chunk::load_a<kDim>(a, rows, 0, step + 1, lane);
    ptx::mma_m16n8k16<true>(sums, a, b[2], b[3]);
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int i = first + kRows + row, j = first + column + e;
    store_product<kDelta>(s, true, i, j, sums[e]);
    store_product<kDelta>(s, false, i, j, sums[2 + e]);
    zero_product(s, first + row, first + kRows + column + e);
  }
}

// Of the warp's tokens with each other.
template <bool kDelta, int kGroup>
__device__ __forceinline__ void multiply_pairs(ChannelScratch& s, const Gates& d, const Gates& k,
                                               const Gates& q, int warp, int lane) {
  const float product = chunk::pair_group<kGroup>(q, k, d, lane);
  const chunk::Pair pair = chunk::pair_of(kGroup, lane);
  const int i = warp * kRows + pair.i, j = warp * kRows + pair.j;
  store_product<kDelta>(s, pair.is_a, i, j, product);
  if (pair.is_a) zero_product(s, j, i);
}

// All of a record but T, from q, k and g in shared memory.
template <bool kDelta>
__device__ __forceinline__ void make_exactly(const ScanParams& p, ExactScratch& x,
                                             const GateSide& side, int rows, int warp, int lane) {
  ChannelScratch& s = x.common;
  const int first = warp * kRows;
  Gates d, k, q;
  load_gates(p, s, first, lane, d);
  find_decays(p.problem, side, first, rows, d);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    load_row(s.record.rows, first + r, lane, k[r]);
    load_row(s.record.rows, kChunk + first + r, lane, q[r]);
  }
  multiply_decays(s, d, p.cuts.work != nullptr, warp, lane);
  __syncthreads();
  if (warp == 0) make_factors<kDelta>(p, s, lane);
  make_exact_rows<kDelta>(x, d, k, q, warp, lane);
  __syncthreads();
  multiply_pairs<kDelta, 0>(s, d, k, q, warp, lane);
  multiply_pairs<kDelta, 1>(s, d, k, q, warp, lane);
  multiply_exact_blocks<kDelta>(x, warp, lane);
}

}  // namespace linattn::cuda::sm90
