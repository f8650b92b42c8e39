// A state warpgroup: 64 value columns of one chain, S^T in its accumulators from the first chunk to
// the last:
//   X_k = S^T K^T, X_q = S^T Q^T,  Z = V - read_k X_k,  R = Z T^T,  O = read_q X_q + R P^T,
//   S^T = decay S^T + (write_k R) K.
// Thread (warp w, lane l) holds value columns 16w + l/4 and + 8.
#pragma once

#include "cuda/portable/chunk.cuh"
#include "cuda/ptx/mma.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tf32.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/scan.load.cuh"

namespace linattn::cuda::sm90 {

using chunk::pack;
using chunk::unpack;

// Calls f(element, offset) for each of the thread's elements of S^T; `offset` is that of (k 0, v0).
template <class F>
__device__ __forceinline__ void for_state(const StateView& view, int64_t offset, float (&s)[64],
                                          F&& f) {
  const int thread = thread_of_warpgroup();
  int64_t at = offset + (thread / 32 * 16 + thread % 32 / 4) * view.v + thread % 4 * 2 * view.k;
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j, at += 8 * view.k)
#pragma unroll
    for (int e = 0; e < 4; ++e) f(s[4 * j + e], at + (e & 1) * view.k + (e / 2) * 8 * view.v);
}

__device__ __forceinline__ void store_state(const StateView& view, void* data, int64_t offset,
                                            float (&s)[64]) {
  for_state(view, offset, s, [&](float x, int64_t at) { store_element(view.type, data, at, x); });
}

// S^T as A operands of k = 16.
template <bool kBf16>
__device__ __forceinline__ void pack_state(uint32_t (&a)[8][4], const float (&s)[64]) {
#pragma unroll
  for (int step = 0; step < 8; ++step)
#pragma unroll
    for (int e = 0; e < 4; ++e)
      a[step][e] = pack<kBf16>(s[8 * step + 2 * e], s[8 * step + 2 * e + 1]);
}

// x = S^T rows^T for rows first.. of a tile.
template <bool kBf16>
__device__ __forceinline__ void read_state(float (&x)[16], const uint32_t (&a)[8][4], uint32_t tile,
                                           int first) {
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const uint64_t rows = tile::k_major<RowsTile>(tile, first, step);
    if (step == 0)
      ptx::wgmma_k16<kBf16, false>(x, a[step], rows);
    else
      ptx::wgmma_k16<kBf16, true>(x, a[step], rows);
  }
  ptx::commit_wgmma();
}

// x (+)= y square^T. The tensor cores cut the lower 13 bits of y off.
template <bool kAccumulate>
__device__ __forceinline__ void multiply_square(float (&x)[16], const uint32_t (&y)[4][4],
                                                uint32_t square) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint64_t rows = tile::k_major<SquareTile>(square, 0, step);
    if (step == 0)
      ptx::wgmma_k8_tf32<kAccumulate>(x, y[step], rows);
    else
      ptx::wgmma_k8_tf32<true>(x, y[step], rows);
  }
  ptx::commit_wgmma();
}

// Four accumulators of a tile as an A operand of fp32 numbers; see square_column.
__device__ __forceinline__ void operand(uint32_t (&a)[4], float x0, float x1, float x2, float x3) {
  a[0] = ptx::float_bits(x0), a[1] = ptx::float_bits(x2);
  a[2] = ptx::float_bits(x1), a[3] = ptx::float_bits(x3);
}

// o: [token, column] of the chunk's first row; through the memory of v.
template <bool kBf16>
__device__ __forceinline__ void store_o(const ScanParams& p, uint16_t* o, int rows,
                                        const float (&x)[16], char* values, int thread) {
  const int warp = thread / 32, lane = thread % 32;
  const uint32_t tile = ptx::shared_address(values);
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    // Tiles of 8 tokens by 8 columns: (token 8j, column), (8j, column + 8), then of j + 1.
    const uint32_t pairs[4] = {
        pack<kBf16>(x[4 * j], x[4 * j + 1]), pack<kBf16>(x[4 * j + 2], x[4 * j + 3]),
        pack<kBf16>(x[4 * j + 4], x[4 * j + 5]), pack<kBf16>(x[4 * j + 6], x[4 * j + 7])};
    ptx::stmatrix_x4_trans(
        tile + tile::swizzled(8 * j + (lane & 7) + (lane & 16) / 2, warp * 2 + (lane / 8 & 1)),
        pairs);
  }
  ptx::sync_named(barrier_of_warpgroup(), kWarpgroup);
  const int64_t stride = p.problem.o.t;
  const int unit = thread % 8;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = thread / 8 + 16 * i;
    if (row >= rows) continue;
    const uint4 eight = *reinterpret_cast<const uint4*>(values + tile::swizzled(row, unit));
    uint16_t* to = o + row * stride + unit * 8;
    if (p.vectors) {
      *reinterpret_cast<uint4*>(to) = eight;
    } else {
      const uint32_t four[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) to[e] = static_cast<uint16_t>(four[e / 2] >> (e % 2 * 16));
    }
  }
}

template <bool kBf16, bool kDelta>
__device__ __forceinline__ void scan_chunks(const ScanParams& p, const Chain& c, char* shared,
                                            uint32_t barriers) {
  const Problem& problem = p.problem;
  const uint32_t full = barriers, empty = full + Layout::kStages * 8;
  float s[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) s[i] = 0.0f;
  if (c.loads) {
    const StateView& view = problem.initial_state;
    for_state(view, view.at(c.slot, c.hv, 0, c.v0), s,
              [&](float& x, int64_t at) { x = load_element(view.type, p.args.initial_state, at); });
  }
  const StateView& intermediate = problem.intermediate_states;
#pragma unroll 1
  for (int chunk = c.begin; chunk < c.end; ++chunk) {
    if (intermediate.present() && chunk >= c.own &&
        static_cast<int64_t>(chunk) * kChunk % problem.state_every == 0) {
      store_state(
          intermediate, p.args.intermediate_states,
          intermediate.at(c.range.batch, c.hv, 0, c.v0) +
              (c.row + static_cast<int64_t>(chunk) * kChunk / problem.state_every) * intermediate.r,
          s);
    }
    const int turn = chunk - c.begin, stage = turn % Layout::kStages;
    char* tiles = shared + stage * Layout::kStageBytes;
    const uint32_t keys = ptx::shared_address(tiles + Layout::kKeys);
    float r[16], o[16];
    ptx::wait(full + stage * 8, turn / Layout::kStages & 1);
    {
      uint32_t a[8][4];
      pack_state<kBf16>(a, s);
      ptx::fence_wgmma();
      if constexpr (kDelta) read_state<kBf16>(r, a, keys, 0);
      read_state<kBf16>(o, a, keys, kChunk);
    }
    const int thread = thread_of_warpgroup();
    const int warp = thread / 32, lane = thread % 32, t = lane % 4;
    char* values = tiles + Layout::kV;
    const Record& record = *reinterpret_cast<const Record*>(tiles + Layout::kRecord);
    // V^T: of two token tiles j, j + 1 the value columns l/4, and + 8.
    uint32_t pairs[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j)
      ptx::ldmatrix_x4_trans(pairs[j], ptx::shared_address(values) +
                                           tile::swizzled(16 * j + (lane & 7) + (lane & 16) / 2,
                                                          warp * 2 + (lane / 8 & 1)));
    const float decay = record.decay;
    ptx::wait_wgmma<kDelta ? 1 : 0>();
    if constexpr (kDelta) ptx::pin(r);
    // Z, or V itself.
    uint32_t z[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float v[4];
      unpack<kBf16>(pairs[j / 2][j % 2 * 2], v[0], v[1]);
      unpack<kBf16>(pairs[j / 2][j % 2 * 2 + 1], v[2], v[3]);
      if constexpr (kDelta) {
        const float2 factor = *reinterpret_cast<const float2*>(record.read_k + 8 * j + 2 * t);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          v[e] = fmaf(e & 1 ? -factor.y : -factor.x, r[4 * j + e], v[e] * kCut);
      }
      operand(z[j], v[0], v[1], v[2], v[3]);
    }
    if constexpr (kDelta) {
      ptx::fence_wgmma();
      multiply_square<false>(r, z, ptx::shared_address(record.t));
      ptx::wait_wgmma<1>();
    }
    ptx::pin(o);
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] *= decay;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 factor = *reinterpret_cast<const float2*>(record.read_q + 8 * j + 2 * t);
#pragma unroll
      for (int e = 0; e < 4; ++e) o[4 * j + e] *= e & 1 ? factor.y : factor.x;
    }
    if constexpr (kDelta) {
      ptx::wait_wgmma<0>();
      ptx::pin(r);
#pragma unroll
      for (int j = 0; j < 4; ++j) operand(z[j], r[4 * j], r[4 * j + 1], r[4 * j + 2], r[4 * j + 3]);
    }
    // For the update R is a sum of two narrow numbers; V, which was narrow, of one.
    uint32_t first[2][4], second[2][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 write = *reinterpret_cast<const float2*>(record.write_k + 8 * j + 2 * t);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const float x0 = ptx::bits_float(z[j][side]) * write.x;
        const float x1 = ptx::bits_float(z[j][side + 2]) * write.y;
        const int at = j % 2 * 2 + side;
        first[j / 2][at] = pack<kBf16>(x0, x1);
        if constexpr (kDelta) {
          float y0, y1;
          unpack<kBf16>(first[j / 2][at], y0, y1);
          second[j / 2][at] = pack<kBf16>(x0 - y0, x1 - y1);
        }
      }
    }
    ptx::pin(s);
    ptx::fence_wgmma();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint64_t rows = tile::mn_major<RowsTile>(keys, step);
      ptx::wgmma_k16_transposed<kBf16, true>(s, first[step], rows);
      if constexpr (kDelta) ptx::wgmma_k16_transposed<kBf16, true>(s, second[step], rows);
    }
    ptx::commit_wgmma();
    multiply_square<true>(o, z, ptx::shared_address(record.p));
    ptx::wait_wgmma<0>();
    ptx::pin(s), ptx::pin(o);
    const int64_t begin = c.range.begin + static_cast<int64_t>(chunk) * kChunk;
    store_o<kBf16>(
        p, static_cast<uint16_t*>(p.args.o) + problem.o.at(c.range.batch, begin, c.hv, c.v0),
        chunk >= c.own ? c.rows(chunk) : 0, o, values, thread);
    // o's way through the memory of v ends before the copy engine writes there again.
    ptx::fence_async_proxy();
    __syncwarp();
    if (lane == 0) ptx::arrive(empty + stage * 8);
  }
  if (!c.last) return;
  // An empty sequence leaves its slot alone, bit for bit.
  const bool pool = problem.pool();
  const int64_t target = pool ? target_slot(problem, p.args, c.n, 0) : c.n;
  const StateView& view = pool ? problem.initial_state : problem.final_state;
  if (!view.present() || target < 0 || (pool && c.end == 0 && c.loads && target == c.slot)) return;
  store_state(view, pool ? p.args.initial_state : p.args.final_state,
              view.at(target, c.hv, 0, c.v0), s);
}

}  // namespace linattn::cuda::sm90
