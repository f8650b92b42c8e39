// Gradients of a chunk with one decay a token, or none: decays are numbers on rows and on pairs,
// and all products are of rows as the caller has them. A warp has 16 channels of all tokens.
#pragma once

#include "cuda/portable/chunk_gradient.cuh"

namespace linattn::cuda {
namespace chunk::gradients {

template <int kDim>
struct TokenGradientShared : GradientShared<kDim> {
  static constexpr int kWarps = kDim / 16;
  alignas(16) char q[kChunk * kDim * 2];
  alignas(16) char k[kChunk * kDim * 2];
  float pairs[kChunk][kChunk + 1];  // P dP + A dA of pairs with decays between them
  // By warps, of each row: what reaches it from the chunk's start, what leaves it for the end.
  float dots[kWarps][2][kChunk];
};

// Rows and columns of a 16x16 block's accumulators.
template <class F>
__device__ __forceinline__ void for_block(int lane, F&& f) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int e = 0; e < 4; ++e) f(tile, e, lane / 4 + e / 2 * 8, tile * 8 + lane % 4 * 2 + e % 2);
}

// dP and dA under their decays as operands, and P dP + A dA.
template <int kDim, bool kDelta>
__device__ __forceinline__ void multiply_pairs(TokenGradientShared<kDim>& s, int warp, int lane) {
  const uint32_t q = ptx::shared_address(s.q), k = ptx::shared_address(s.k);
  for (int task = warp; task < 4; task += kDim / 16) {
    const int i = task / 2, j = task % 2;
    float with_q[2][4] = {}, with_k[2][4] = {};
    if (j <= i) {
#pragma unroll 4
      for (int kk = 0; kk < kDim / 16; ++kk) {
        uint32_t a[4], b[4];
        load_b<kDim>(b, k, j * kBlock, kk, lane);
        load_a<kDim>(a, q, i * kBlock, kk, lane);
        ptx::mma_m16n8k16<kBf16>(with_q[0], a, b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(with_q[1], a, b[2], b[3]);
        if constexpr (kDelta) {
          load_a<kDim>(a, k, i * kBlock, kk, lane);
          ptx::mma_m16n8k16<kBf16>(with_k[0], a, b[0], b[1]);
          ptx::mma_m16n8k16<kBf16>(with_k[1], a, b[2], b[3]);
        }
      }
    }
    for_block(lane, [&](int tile, int e, int r, int c) {
      const int row = i * kBlock + r, column = j * kBlock + c;
      const bool below = column < row;
      const float decay = column <= row ? exp2f(s.log_decay[row] - s.log_decay[column]) : 0.0f;
      const float dp = column <= row ? decay * s.dp[row][column] : 0.0f;
      if constexpr (kDelta)
        store_split<kBf16>(s.dp_square, s.dp_square_low(), row, column, dp);
      else
        *square_at(s.dp_square, row, column) = narrow<kBf16>(dp);
      float both = below ? dp * with_q[tile][e] : 0.0f;
      if constexpr (kDelta) {
        const float da = below ? decay * s.da[row][column] : 0.0f;
        store_split<kBf16>(s.da_square, s.da_square_low(), row, column, da);
        both = below ? fmaf(da, with_k[tile][e], both) : 0.0f;
      }
      s.pairs[row][column] = both;
    });
  }
}

// The warp's channels of dq and dk, tokens by rows: tile t of block i.
struct RowGradients {
  float q[2][2][4], k[2][2][4];
};

// What comes through the states; `dots` takes what crosses decays on the way.
template <int kDim, bool kDelta>
__device__ __forceinline__ void take_products(RowGradients& x, int warp, int lane,
                                              TokenGradientShared<kDim>& s) {
  const int channel = warp * 16 + lane % 4 * 2;
  const float last = s.log_decay[kChunk - 1];
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int row = i * kBlock + side * 8 + lane / 4;
      const float prefix = exp2f(s.log_decay[row]), suffix = exp2f(last - s.log_decay[row]);
      float entering = 0.0f, leaving = 0.0f;
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int c = channel + tile * 8, at = swizzled<kDim>(row, c / 8) + c % 8 * 2;
        float q[2], k[2];
        unpack<kBf16>(*reinterpret_cast<const uint32_t*>(s.q + at), q[0], q[1]);
        unpack<kBf16>(*reinterpret_cast<const uint32_t*>(s.k + at), k[0], k[1]);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float by_q = prefix * s.row(0, row)[c + e];
          const float by_end = suffix * s.row(2, row)[c + e];
          entering = fmaf(by_q, q[e], entering);
          leaving = fmaf(by_end, k[e], leaving);
          float by_k = 0.0f;
          if constexpr (kDelta) {
            by_k = prefix * s.row(1, row)[c + e];
            entering = fmaf(by_k, k[e], entering);
          }
          x.q[i][tile][2 * side + e] = by_q;
          x.k[i][tile][2 * side + e] = by_k + by_end;
        }
      }
#pragma unroll
      for (int bit = 1; bit <= 2; bit *= 2) {
        entering += ptx::shuffle_xor(entering, bit);
        leaving += ptx::shuffle_xor(leaving, bit);
      }
      if (lane % 4 == 0) s.dots[warp][0][row] = entering, s.dots[warp][1][row] = leaving;
    }
}

// dq += dP K, dk += dP^T Q + (dA + dA^T) K.
template <int kDim, bool kDelta>
__device__ __forceinline__ void multiply_rows(RowGradients& x, int warp, int lane,
                                              TokenGradientShared<kDim>& s) {
  const uint32_t dp[2] = {ptx::shared_address(s.dp_square), ptx::shared_address(s.dp_square_low())};
  const uint32_t da[2] = {ptx::shared_address(s.da_square), ptx::shared_address(s.da_square_low())};
  const int m = lane / 8, lower = lane % 8;
  // y += square rows, for 16 rows and columns of a matrix or of its transpose, with the low part.
  const auto multiply = [&](float (&y)[2][4], const uint32_t (&square)[2], bool transposed, int i,
                            int block, const uint32_t (&b)[4]) {
#pragma unroll
    for (int part = 0; part < (kDelta ? 2 : 1); ++part) {
      uint32_t a[4];
      if (transposed)
        ptx::ldmatrix_x4_trans(
            a, square[part] + swizzled_square(block * 16 + (m >> 1) * 8 + lower, i * 2 + (m & 1)));
      else
        ptx::ldmatrix_x4(
            a, square[part] + swizzled_square(i * 16 + (m & 1) * 8 + lower, block * 2 + (m >> 1)));
      ptx::mma_m16n8k16<kBf16>(y[0], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(y[1], a, b[2], b[3]);
    }
  };
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    uint32_t q[4], k[4];
    load_b_trans<kDim>(q, ptx::shared_address(s.q), block * 16, warp, lane);
    load_b_trans<kDim>(k, ptx::shared_address(s.k), block * 16, warp, lane);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (block <= i) {  // lower triangles
        multiply(x.q[i], dp, false, i, block, k);
        if constexpr (kDelta) multiply(x.k[i], da, false, i, block, k);
      }
      if (block >= i) {
        multiply(x.k[i], dp, true, i, block, q);
        if constexpr (kDelta) multiply(x.k[i], da, true, i, block, k);
      }
    }
  }
}

// To rows of shared memory; ends with a barrier.
template <int kDim>
__device__ __forceinline__ void leave_rows(const RowGradients& x, int warp, int lane,
                                           TokenGradientShared<kDim>& s) {
  ptx::sync_cta();  // the products have been read
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int side = 0; side < 2; ++side)
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const int row = i * kBlock + side * 8 + lane / 4;
        const int c = warp * 16 + tile * 8 + lane % 4 * 2;
        const auto put = [&](int array, const float (&y)[4]) {
          *reinterpret_cast<float2*>(s.row(array, row) + c) =
              make_float2(y[2 * side], y[2 * side + 1]);
        };
        put(0, x.q[i][tile]);
        put(1, x.k[i][tile]);
      }
  ptx::sync_cta();
}

// The gate's gradient, by one warp: lane t has token t.
template <int kDim>
__device__ __forceinline__ void store_token_gate(const ChunkGradientParams& g, int lane,
                                                 const TokenGradientShared<kDim>& s) {
  const ChunkParams& p = g.chunk;
  const Place& place = s.place;
  const Problem& problem = p.problem;
  float entering = 0.0f, leaving = 0.0f, through = 0.0f;
  for (int w = 0; w < kDim / 16; ++w) entering += s.dots[w][0][lane], leaving += s.dots[w][1][lane];
  for (int c = lane; c < kDim; c += 32) through += s.through[c];
  through = gradient::warp_sum(through) * exp2f(s.log_decay[kChunk - 1]);
  // Rows from t on, tokens before t, and pairs around t: column sums from the last row up, whose
  // part left of t is summed over the lanes.
  float from_here = 0.0f, before = 0.0f, column = 0.0f, crossing = 0.0f;
#pragma unroll 1
  for (int t = kChunk - 1; t >= 0; --t) {
    const float enters = ptx::shuffle(entering, t), leaves = ptx::shuffle(leaving, t);
    if (t >= lane) from_here += enters;
    if (t < lane) before += leaves;
    column += s.pairs[t][lane];
    const float sum = gradient::warp_sum(lane < t ? column : 0.0f);
    if (t == lane) crossing = sum;
  }
  float dlog = (through + from_here) + (before + crossing);
  gradient::GateGradient got{0.0f, 0.0f};
  if (lane < place.rows) {
    const int64_t t = place.begin + lane;
    const float raw =
        load_element(problem.g.type, p.args.g, problem.g.at(place.batch, t, place.hv)) +
        gradient::bias_of(problem, p.args, place.hv, 0);
    const float factor = gate_factor(problem, p.args, place.hv);
    // Below this the decay is zero, and so is the gradient, before what a raw gate multiplies it
    // by.
    if (log_decay(problem, raw, 0.0f, factor) < kLowestLogDecay) dlog = 0.0f;
    got = gradient::gate_gradient<false>(problem, dlog, raw, factor);
    if (problem.dg.present())
      store_element(problem.dg.type, p.args.dg, problem.dg.at(place.batch, t, place.hv), got.g);
  }
  if (g.gate_sums == nullptr) return;
  const float by_bias = gradient::warp_sum(got.g), by_factor = gradient::warp_sum(got.A_log);
  if (lane < 2) g.gate_sums[s.index * 2 + lane] = lane == 0 ? by_bias : by_factor;
}

// One value head of the CTA's group.
template <int kDim, bool kDelta>
__device__ __forceinline__ void token_gradients(const ChunkGradientParams& g, int member,
                                                TokenGradientShared<kDim>& s, int thread) {
  constexpr int kThreads = gradient_threads(kDim);
  constexpr GradientRecord layout{kDim, false, kDelta};
  const ChunkParams& p = g.chunk;
  const Problem& problem = p.problem;
  const int lane = thread % 32, warp = thread / 32;
  if (member == 0) {
    const Place& place = s.place;
    load_rows<kDim>(p.args.q, problem.q.at(place.batch, place.begin, place.h), problem.q.t,
                    place.rows, p.dim_k, p.qk_vectors, s.q, thread, kThreads);
    load_rows<kDim>(p.args.k, problem.k.at(place.batch, place.begin, place.h), problem.k.t,
                    place.rows, p.dim_k, p.qk_vectors, s.k, thread, kThreads);
  }
  multiply_chunk<kDim, kDelta>(g, layout, s, thread);
  multiply_pairs<kDim, kDelta>(s, warp, lane);
  RowGradients x;
  take_products<kDim, kDelta>(x, warp, lane, s);
  ptx::sync_cta();
  if (warp == 0 && problem.gate == Gate::head && gradient::wants_gate(problem))
    store_token_gate<kDim>(g, lane, s);
  multiply_rows<kDim, kDelta>(x, warp, lane, s);
  leave_rows<kDim>(x, warp, lane, s);
  finish_rows<kDim>(g, member, s, warp, lane);
}

}  // namespace chunk::gradients

// grid: chunk slots * H, the head fastest; block: gradient_threads().
template <int kDim, bool kDelta>
__global__ void __launch_bounds__(gradient_threads(kDim), chunk::gradients::gradient_ctas<kDim>())
    chunk_gradient_token_portable(const __grid_constant__ ChunkGradientParams g) {
  auto& s = *reinterpret_cast<chunk::gradients::TokenGradientShared<kDim>*>(ptx::dynamic_shared());
  const int group = static_cast<int>(g.chunk.group.divisor);
#pragma unroll 1
  for (int member = 0; member < group; ++member) {
    // Read again for each, or what follows from it is kept in registers around the loop.
    const int thread = static_cast<int>(ptx::thread_of_cta());
    if (chunk::gradients::enter_place(g, member, s, thread))
      chunk::gradients::token_gradients<kDim, kDelta>(g, member, s, thread);
  }
}

}  // namespace linattn::cuda
