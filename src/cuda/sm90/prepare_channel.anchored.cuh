// Preparation with a gate a channel of which 16 tokens decay by no more than exp(-80).
//
// With r = round(G_16), the products of [Ka; Qa] = [k; q] 2^(G - r) with Kc = k 2^(r - G) are those
// of the decayed keys and queries, whatever r: exponents stay within 16 * 5 / ln 2 = 115. 2^G is
// 2^f times a power of two, which alone r changes, so that no bit depends on the gates behind a
// token; and K~ = Ka 2^r is as Ka was rounded.
#pragma once

#include "cuda/sm90/prepare.square.cuh"
#include "cuda/sm90/prepare_channel.inputs.cuh"

namespace linattn::cuda::sm90 {

// Base-2 log decays in place of what g holds. The bounded form's sigmoid has factor and bias with
// the sign and the base of its exponent.
__device__ __forceinline__ void find_log_decays(const Problem& problem, const GateSide& side,
                                                int first, int rows, Gates& x) {
  if (problem.gate_form == GateForm::given) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int e = 0; e < kWidth; ++e) x[r][e] *= kLog2E;
    return;
  }
  const float bound = kLog2E * static_cast<float>(problem.lower_bound);
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float of_row = first + r < rows ? bound : 0.0f;
#pragma unroll
    for (int e = 0; e < kWidth; ++e)
      x[r][e] =
          of_row * ptx::reciprocal(1.0f + ptx::exp2(fmaf(x[r][e], side.factor, side.bias[e])));
  }
}

// Sums over the warp's tokens: of every channel, and of the weakest gate of each token.
__device__ __forceinline__ void sum_gates(ChannelScratch& s, const Gates& g, bool with_bound,
                                          int warp, int lane) {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    sum.x += g[r][0], sum.y += g[r][1], sum.z += g[r][2], sum.w += g[r][3];
  *reinterpret_cast<float4*>(&s.sums[warp][lane * kWidth]) = sum;
  if (!with_bound) return;
  float lowest = 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r)
    lowest += ptx::lowest_magnitude(
        fminf(fminf(fabsf(g[r][0]), fabsf(g[r][1])), fminf(fabsf(g[r][2]), fabsf(g[r][3]))));
  if (lane == 0) s.lowest[warp] = lowest;
}

__device__ __forceinline__ float4 sums_of(const ChannelScratch& s, int warp, int lane) {
  return *reinterpret_cast<const float4*>(&s.sums[warp][lane * kWidth]);
}

__device__ __forceinline__ uint2 pack_channels(const float (&x)[kWidth]) {
  return make_uint2(ptx::pack_bf16(x[0], x[1]), ptx::pack_bf16(x[2], x[3]));
}

// Rows of the anchored frame, and the record's keys for the update.
template <bool kDelta>
__device__ __forceinline__ void make_rows(ChannelScratch& s, const Gates& g, int warp, int lane) {
  // Adding it leaves the whole part of a number below 2^22 in the lowest bits.
  constexpr float kMagic = 0x1.8p23f;
  float at[kWidth] = {}, end[kWidth];
  uint32_t anchor[kWidth];  // r where a float has its exponent
  {
    float middle[kWidth], last[kWidth] = {}, power[kWidth], decay[kWidth];
#pragma unroll
    for (int w = 0; w < kChunk / kRows; ++w) {
      const float4 sum = sums_of(s, w, lane);
      const float of[kWidth] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        if (w == warp) at[e] = last[e];
        if (w == kChunk / kRows / 2) middle[e] = last[e];
        last[e] += of[e];
      }
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      const float rounded = middle[e] + kMagic, whole = rounded - kMagic;
      anchor[e] = __float_as_uint(rounded) << 23;
      end[e] = ptx::exp2(last[e] - whole);
      decay[e] = ptx::exp2(last[e]);
      power[e] = ptx::exp2(whole);
    }
    if (warp == 0) {
      *reinterpret_cast<float4*>(s.record.decay + lane * kWidth) =
          make_float4(decay[0], decay[1], decay[2], decay[3]);
      *reinterpret_cast<uint2*>(s.power + lane * kWidth) = pack_channels(power);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int row = warp * kRows + r;
    auto* at_k = reinterpret_cast<uint2*>(s.record.rows + RowsTile::at(row, lane * kWidth));
    auto* at_q =
        reinterpret_cast<uint2*>(s.record.rows + RowsTile::at(kChunk + row, lane * kWidth));
    const int at_keys = KeysTile::at(row, lane * kWidth);
    const uint2 raw_k = *at_k, raw_q = *at_q;
    float k[kWidth], q[kWidth], before[kWidth], behind[kWidth];
    ptx::unpack_bf16(raw_k.x, k[0], k[1]), ptx::unpack_bf16(raw_k.y, k[2], k[3]);
    ptx::unpack_bf16(raw_q.x, q[0], q[1]), ptx::unpack_bf16(raw_q.y, q[2], q[3]);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) {
      at[e] += g[r][e];
      const float rounded = at[e] + kMagic, part = at[e] - (rounded - kMagic);
      const uint32_t whole = (__float_as_uint(rounded) << 23) - anchor[e];
      const float to_row = __uint_as_float(__float_as_uint(ptx::exp2(part)) + whole);
      const float to_anchor = __uint_as_float(__float_as_uint(ptx::exp2(-part)) - whole);
      before[e] = k[e] * to_anchor;
      behind[e] = before[e] * end[e];
      k[e] *= to_row, q[e] *= to_row;
    }
    if constexpr (kDelta) *at_k = pack_channels(k);
    *at_q = pack_channels(q);
    *reinterpret_cast<uint2*>(s.keys() + at_keys) = pack_channels(before);
    *reinterpret_cast<uint2*>(s.record.update + at_keys) = pack_channels(behind);
  }
}

// The warp's rows from the anchored frame to the record's.
template <bool kDelta>
__device__ __forceinline__ void scale_rows(ChannelScratch& s, int warp, int lane) {
  const int channel = lane % 16 * 8, half = lane / 16;
  const uint4 power = *reinterpret_cast<const uint4*>(s.power + channel);
#pragma unroll
  for (int r = 0; r < 2 * kRows; r += 2) {
    if (!kDelta && r < kRows) continue;
    const int row = (r < kRows ? r : kChunk - kRows + r) + warp * kRows + half;
    auto* at = reinterpret_cast<uint4*>(s.record.rows + RowsTile::at(row, channel));
    const uint4 x = *at;
    *at = make_uint4(ptx::multiply_bf16(x.x, power.x), ptx::multiply_bf16(x.y, power.y),
                     ptx::multiply_bf16(x.z, power.z), ptx::multiply_bf16(x.w, power.w));
  }
}

// 16 rows of [Ka; Qa] times Kc, the lower blocks: of A from warps 0 and 1, of P from 2 and 3.
__device__ __forceinline__ void multiply_anchored(ChannelScratch& s, int warp, int lane,
                                                  float (&x)[4][4]) {
  const int m = lane / 8, row = lane % 8;
  const uint32_t rows =
      ptx::shared_address(s.record.rows) + (16 * warp + (m & 1) * 8) * tile::kSwizzleBytes;
  const uint32_t keys = ptx::shared_address(s.keys()) + (m >> 1) * 8 * tile::kSwizzleBytes;
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    uint32_t a[4], b[4];
    ptx::ldmatrix_x4(
        a, rows + step / 4 * RowsTile::kPanelBytes + tile::swizzled(row, step % 4 * 2 + (m >> 1)));
    const uint32_t at =
        keys + step / 4 * KeysTile::kPanelBytes + tile::swizzled(row, step % 4 * 2 + (m & 1));
    ptx::ldmatrix_x4(b, at);
    ptx::mma_m16n8k16<true>(x[0], a, b[0], b[1]);
    ptx::mma_m16n8k16<true>(x[1], a, b[2], b[3]);
    if (warp % 2 == 0) continue;
    ptx::ldmatrix_x4(b, at + 16 * tile::kSwizzleBytes);
    ptx::mma_m16n8k16<true>(x[2], a, b[0], b[1]);
    ptx::mma_m16n8k16<true>(x[3], a, b[2], b[3]);
  }
}

// A or P in place of the keys.
template <bool kDelta>
__device__ __forceinline__ void store_products(ChannelScratch& s, int warp, int lane,
                                               const float (&x)[4][4]) {
  const bool is_p = warp >= 2;
  const int first = warp % 2 * 16;
  char* square = reinterpret_cast<char*>(is_p ? s.record.p : s.record.t);
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const int i = first + side * 8 + lane / 4;
    const float of_row = is_p ? s.row_p[i] : s.row_a[i];
    // Not of rounded rows: without much memory this is most of O.
    const float diagonal = of_row * s.record.read_k[i] * s.products[i];
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      const int j = tile * 8 + lane % 4 * 2;
      if (tile >= 2 && first == 0) continue;
      const float2 keys = *reinterpret_cast<const float2*>(s.record.read_k + j);
      const float x0 = of_row * keys.x * x[tile][2 * side];
      const float x1 = of_row * keys.y * x[tile][2 * side + 1];
      if (is_p) {
        *square_at(square, i, j) = j < i ? x0 : j == i ? diagonal : 0.0f;
        *square_at(square, i, j + 1) = j + 1 < i ? x1 : j + 1 == i ? diagonal : 0.0f;
      } else {
        *row_pair(square, first, tile * 8, lane, 0, side) =
            make_float2(j < i ? x0 : 0.0f, j + 1 < i ? x1 : 0.0f);
      }
    }
  }
  if (is_p && first == 0) zero_upper_block(square, lane);
}

// All of a record but T, from q, k and g in shared memory.
template <bool kDelta>
__device__ __forceinline__ void make_anchored(const ScanParams& p, ChannelScratch& s,
                                              const GateSide& side, int rows, int warp, int lane) {
  {
    Gates g;
    load_gates(p, s, warp * kRows, lane, g);
    find_log_decays(p.problem, side, warp * kRows, rows, g);
    sum_gates(s, g, p.cuts.work != nullptr, warp, lane);
    __syncthreads();
    if (warp == 0) make_factors<kDelta>(p, s, lane);
    make_rows<kDelta>(s, g, warp, lane);
  }
  __syncthreads();
  float x[4][4] = {};
  if (kDelta || warp >= 2) multiply_anchored(s, warp, lane, x);
  __syncthreads();
  if (kDelta || warp >= 2) store_products<kDelta>(s, warp, lane, x);
  scale_rows<kDelta>(s, warp, lane);
}

}  // namespace linattn::cuda::sm90
