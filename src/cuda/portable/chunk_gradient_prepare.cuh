// The backward's preparation: one CTA makes the record of one chunk of one value head. Nothing here
// depends on the state, so all chunks run at once.
//
// Channel gates work with products of decays inside blocks of 16 tokens, never with differences of
// cumulated logarithms: any gate in [-inf, 0] is right, since every factor is at most 1.
#pragma once

#include <type_traits>

#include "cuda/portable/chunk.cuh"
#include "cuda/portable/chunk_gradient.params.h"
#include "cuda/portable/chunk_pairs.cuh"
#include "cuda/portable/chunk_place.cuh"

namespace linattn::cuda {
namespace chunk::gradients {

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
__device__ __forceinline__ void store_p(char* record, const GradientRecord& layout, int row,
                                        int column, float x) {
  if (layout.delta)
    store_split<kBf16>(record + layout.p(), record + layout.p_low(), row, column, x);
  else
    *square_at(record + layout.p(), row, column) = narrow<kBf16>(x);
}

// The upper right block of P, which no product touches.
__device__ __forceinline__ void clear_p(char* record, const GradientRecord& layout, int thread) {
  if (thread >= 32) return;
  const int at = swizzled_square(thread / 2, 2 + thread % 2);
  *reinterpret_cast<uint4*>(record + layout.p() + at) = make_uint4(0, 0, 0, 0);
  if (layout.delta)
    *reinterpret_cast<uint4*>(record + layout.p_low() + at) = make_uint4(0, 0, 0, 0);
}

// (I + B A)^-1, or with `columns` (I + A B)^-1, for B = diag(beta): forward substitution, one
// column a lane, which is multiplied by `scale`. A series in powers of A would not survive repeated
// keys.
template <bool kBf16>
__device__ __forceinline__ void solve(const float (&a)[kChunk][kChunk + 4], const float* beta,
                                      bool columns, float scale, char* square, char* square_low,
                                      int lane) {
  float x[kChunk];  // with `columns` times beta
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    float sum[4] = {};
#pragma unroll
    for (int m = 0; m < i; ++m) sum[m % 4] = fmaf(a[i][m], x[m], sum[m % 4]);
    const float all = (sum[0] + sum[1]) + (sum[2] + sum[3]), one = i == lane ? 1.0f : 0.0f;
    const float y = columns ? one - all : fmaf(-beta[i], all, one);
    store_split<kBf16>(square, square_low, i, lane, y * scale);
    x[i] = columns ? y * beta[i] : y;
  }
}

template <int kDim>
struct PrepareScalarShared {
  alignas(16) char q[kChunk * kDim * 2];
  alignas(16) char k[kChunk * kDim * 2];
  float a[kChunk][kChunk + 4];
  float beta[kChunk], norm_q[kChunk], norm_k[kChunk], log_decay[kChunk];
};

template <int kDim>
struct PrepareChannelShared {
  static constexpr int kParts = kDim == 256 ? 2 : 1;  // warps that share a sub-block's channels
  // Swizzled tiles. 16: rows 16.. from row 16's start, keys ..15 to row 15's end.
  alignas(16) char q16[kBlock * kDim * 2], k16[kBlock * kDim * 2], end16[kBlock * kDim * 2];
  // 8, for each block of 16: 8 rows of q, 8 of k from row 8's start; keys ..7 to row 7's end.
  alignas(16) char rows8[2][kBlock * kDim * 2], end8[2][kSub * kDim * 2];
  float a[kChunk][kChunk + 4];
  float beta[kChunk];
  float total[4][kDim];  // decay of each sub-block
  float squares[kParts][4][kBlock];
  float pairs[kParts][4][64];
};

// kPer neighbouring channels of a row of a swizzled tile.
template <bool kBf16, int kDim, int kPer>
__device__ __forceinline__ void store_channels(char* tile, int row, int channel,
                                               const float (&x)[kPer], const float (&scale)[kPer]) {
  char* to = tile + swizzled<kDim>(row, channel / 8) + channel % 8 * 2;
  if constexpr (kPer == 4)
    *reinterpret_cast<uint2*>(to) = make_uint2(pack<kBf16>(x[0] * scale[0], x[1] * scale[1]),
                                               pack<kBf16>(x[2] * scale[2], x[3] * scale[3]));
  else
    *reinterpret_cast<uint32_t*>(to) = pack<kBf16>(x[0] * scale[0], x[1] * scale[1]);
}

// Products of the sub-blocks' rows with the keys before them, by warps 0 to 3.
template <bool kBf16, int kDim>
__device__ __forceinline__ void multiply_blocks(const GradientRecord& layout, char* record,
                                                PrepareChannelShared<kDim>& s, int task, int lane) {
  const int row = lane / 4, column = lane % 4 * 2;
  if (task < 2) {  // rows 16.. against keys ..15: P, A
    const uint32_t rows = ptx::shared_address(task == 0 ? s.q16 : s.k16);
    const uint32_t keys = ptx::shared_address(s.end16);
    float sums[2][4] = {};
#pragma unroll
    for (int kk = 0; kk < kDim / 16; ++kk) {
      uint32_t a[4], b[4];
      load_a<kDim>(a, rows, 0, kk, lane);
      load_b<kDim>(b, keys, 0, kk, lane);
      ptx::mma_m16n8k16<kBf16>(sums[0], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = kBlock + row + e / 2 * 8, j = tile * 8 + column + e % 2;
        if (task == 0)
          store_p<kBf16>(record, layout, i, j, sums[tile][e]);
        else
          s.a[i][j] = sums[tile][e];
      }
    return;
  }
  const int block = task - 2, first = block * kBlock;  // rows 8.. of a block against its keys ..7
  const uint32_t rows = ptx::shared_address(s.rows8[block]);
  const uint32_t keys = ptx::shared_address(s.end8[block]);
  float sums[4] = {};
#pragma unroll
  for (int kk = 0; kk < kDim / 16; kk += 2) {
    uint32_t a[4], b[4];
    ptx::ldmatrix_x4(b, keys + swizzled<kDim>(lane % 8, kk * 2 + lane / 8));
    load_a<kDim>(a, rows, 0, kk, lane);
    ptx::mma_m16n8k16<kBf16>(sums, a, b[0], b[1]);
    load_a<kDim>(a, rows, 0, kk + 1, lane);
    ptx::mma_m16n8k16<kBf16>(sums, a, b[2], b[3]);
  }
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int i = first + kSub + row, j = first + column + e;
    store_p<kBf16>(record, layout, i, j, sums[e]);
    s.a[i][j] = sums[2 + e];
    store_p<kBf16>(record, layout, first + row, first + kSub + column + e, 0.0f);
  }
}

// Decays of a sub-block's rows, kPer channels a lane; 1 where rows or channels do not exist.
template <int kPer>
__device__ __forceinline__ void load_decays(const ChunkParams& p, const Place& place, int sub,
                                            int channel, float (&d)[kSub][kPer]) {
  const Problem& problem = p.problem;
  const int valid = p.dim_k - channel;
  float bias[kPer] = {};
  if (problem.dt_bias.present()) {
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      if (e < valid)
        bias[e] = load_element(problem.dt_bias.type, p.args.dt_bias,
                               place.hv * problem.dt_bias.h + (channel + e) * problem.dt_bias.k);
  }
  const float factor = gate_factor(problem, p.args, place.hv);
  int64_t at = problem.g.at(place.batch, place.begin + sub * kSub, place.hv, channel);
#pragma unroll
  for (int r = 0; r < kSub; ++r, at += problem.g.t)
    load_channels(problem.g.type, p.args.g, at, sub * kSub + r < place.rows ? valid : 0, p.vectors,
                  d[r]);
  decays_of(problem, bias, factor, d);
#pragma unroll
  for (int r = 0; r < kSub; ++r)
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      if (sub * kSub + r >= place.rows || e >= valid) d[r][e] = 1.0f;
}

// Its rows of q and k, zero where they do not exist, normalised where asked. Lane l gets the
// inverse norm of row l % 8 of q (l % 16 < 8) or k.
template <int kParts, int kPer>
__device__ __forceinline__ float load_sub_block(const ChunkParams& p, const Place& place, int sub,
                                                int part, int channel, int lane,
                                                float (&squares_of)[kParts][4][kBlock],
                                                float (&q)[kSub][kPer], float (&k)[kSub][kPer]) {
  const Problem& problem = p.problem;
  const int64_t t0 = place.begin + sub * kSub;
  int64_t q_at = problem.q.at(place.batch, t0, place.h, channel);
  int64_t k_at = problem.k.at(place.batch, t0, place.h, channel);
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    const int there = sub * kSub + r < place.rows ? p.dim_k - channel : 0;
    load_channels(problem.q.type, p.args.q, q_at, there, p.vectors, q[r]);
    load_channels(problem.q.type, p.args.k, k_at, there, p.vectors, k[r]);
    q_at += problem.q.t, k_at += problem.k.t;
  }
  float inverse = 1.0f;
  if (problem.qk_norm) {
    float squares[kBlock];
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      float qq = 0.0f, kk = 0.0f;
#pragma unroll
      for (int e = 0; e < kPer; ++e) {
        qq = fmaf(q[r][e], q[r][e], qq);
        kk = fmaf(k[r][e], k[r][e], kk);
      }
      squares[r] = qq, squares[kSub + r] = kk;
    }
    float sum = reduce_16(squares, lane);
    if constexpr (kParts > 1) {
      if (lane < kBlock) squares_of[part][sub][lane] = sum;
      __syncthreads();
      sum = 0.0f;
#pragma unroll
      for (int w = 0; w < kParts; ++w) sum += squares_of[w][sub][lane % kBlock];
    }
    inverse = rsqrtf(sum + 1e-6f);
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      const float inverse_q = ptx::shuffle(inverse, r);
      const float inverse_k = ptx::shuffle(inverse, kSub + r);
#pragma unroll
      for (int e = 0; e < kPer; ++e) q[r][e] *= inverse_q, k[r][e] *= inverse_k;
    }
  }
  return inverse;
}

// Decays around a sub-block: to it from the start of its 16 rows and of the chunk, and from it to
// their ends.
template <int kPer>
struct Around {
  float before16[kPer], before32[kPer], after16[kPer], after32[kPer];
};

template <int kDim, int kPer>
__device__ __forceinline__ Around<kPer> around_sub_block(const float (&total)[4][kDim], int sub,
                                                         int channel) {
  Around<kPer> around;
  const int block = sub / 2;
  const bool odd = sub % 2 != 0;
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    const float t_0 = total[0][channel + e], t_1 = total[1][channel + e];
    const float t_2 = total[2][channel + e], t_3 = total[3][channel + e];
    const float first = block == 0 ? t_0 : t_2, second = block == 0 ? t_1 : t_3;
    around.before16[e] = odd ? first : 1.0f;
    around.after16[e] = odd ? 1.0f : second;
    around.before32[e] = around.before16[e] * (block == 0 ? 1.0f : t_0 * t_1);
    around.after32[e] = around.after16[e] * (block == 0 ? t_2 * t_3 : 1.0f);
  }
  return around;
}

// From rows and decays to the record and to the products. Which lane this is is asked again: kept
// in registers from the loads on, what follows from it spills.
template <bool kBf16, int kDim, int kPer>
__device__ __forceinline__ void prepare_rows(const ChunkParams& p, char* record,
                                             PrepareChannelShared<kDim>& s,
                                             const float (&q)[kSub][kPer],
                                             const float (&k)[kSub][kPer],
                                             const float (&d)[kSub][kPer]) {
  constexpr int kParts = PrepareChannelShared<kDim>::kParts;
  const GradientRecord layout{kDim, true, p.delta};
  const int thread = static_cast<int>(ptx::thread_of_cta()), lane = thread % 32, warp = thread / 32;
  const int sub = warp % 4, part = warp / 4, block = sub / 2;
  const bool odd = sub % 2 != 0;
  const int channel = part * 128 + lane * kPer;
  const Around<kPer> around = around_sub_block<kDim, kPer>(s.total, sub, channel);
  const float (&before16)[kPer] = around.before16, (&before32)[kPer] = around.before32;
  const float (&after16)[kPer] = around.after16, (&after32)[kPer] = around.after32;
  float ones[kPer];
#pragma unroll
  for (int e = 0; e < kPer; ++e) ones[e] = 1.0f;

  float from_start[kPer], to_end[kPer];
#pragma unroll
  for (int e = 0; e < kPer; ++e) from_start[e] = to_end[e] = 1.0f;
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    float row_q[kPer], row_k[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      from_start[e] *= d[r][e];
      row_q[e] = q[r][e] * from_start[e], row_k[e] = k[r][e] * from_start[e];
    }
    const int row = sub * kSub + r, row16 = row % kBlock;
    store_channels<kBf16, kDim>(record + layout.q(), row, channel, row_q, before32);
    if (p.delta) store_channels<kBf16, kDim>(record + layout.k(), row, channel, row_k, before32);
    if (block == 1) {
      store_channels<kBf16, kDim>(s.q16, row16, channel, row_q, before16);
      store_channels<kBf16, kDim>(s.k16, row16, channel, row_k, before16);
    }
    if (odd) {
      store_channels<kBf16, kDim>(s.rows8[block], r, channel, row_q, ones);
      store_channels<kBf16, kDim>(s.rows8[block], kSub + r, channel, row_k, ones);
    }
  }
  __syncwarp();  // mixed with the rows above, these spill
#pragma unroll
  for (int r = kSub - 1; r >= 0; --r) {
    float row_k[kPer];
#pragma unroll
    for (int e = 0; e < kPer; ++e) {
      row_k[e] = k[r][e] * to_end[e];
      to_end[e] *= d[r][e];
    }
    const int row = sub * kSub + r;
    store_channels<kBf16, kDim>(record + layout.update(), row, channel, row_k, after32);
    if (block == 0) store_channels<kBf16, kDim>(s.end16, row, channel, row_k, after16);
    if (!odd) store_channels<kBf16, kDim>(s.end8[block], r, channel, row_k, ones);
  }
  if (thread < kDim)
    reinterpret_cast<float*>(record + layout.scalars())[thread] =
        s.total[0][thread] * s.total[1][thread] * (s.total[2][thread] * s.total[3][thread]);
  s.pairs[part][sub][lane] = pair_group<0>(q, k, d, lane);
  s.pairs[part][sub][32 + lane] = pair_group<1>(q, k, d, lane);
  __syncthreads();

  for (int i = thread; i < 4 * 64; i += static_cast<int>(blockDim.x)) {
    const int of = i / 64;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kParts; ++w) sum += s.pairs[w][of][i % 64];
    const Pair pair = pair_of(i % 64 / 32, i % 32);
    const int row = of * kSub + pair.i, column = of * kSub + pair.j;
    if (pair.is_a) {
      s.a[row][column] = sum;
      store_p<kBf16>(record, layout, column, row, 0.0f);  // above the diagonal
    } else {
      store_p<kBf16>(record, layout, row, column, sum);
    }
  }
  if (warp < 4) multiply_blocks<kBf16, kDim>(layout, record, s, warp, lane);
}

template <bool kBf16, int kDim>
__device__ __forceinline__ void prepare_channel(const ChunkParams& p, const Place& place,
                                                char* record, PrepareChannelShared<kDim>& s) {
  constexpr int kParts = PrepareChannelShared<kDim>::kParts;
  constexpr int kPer = kDim == 64 ? 2 : 4;  // channels a lane
  const GradientRecord layout{kDim, true, p.delta};
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int sub = warp % 4, part = warp / 4;
  const int channel = part * 128 + lane * kPer;

  if (thread < kChunk)
    s.beta[thread] = p.delta && thread < place.rows
                         ? load_beta(problem, p.args, place.batch, place.begin + thread, place.hv)
                         : 0.0f;

  float q[kSub][kPer], k[kSub][kPer], d[kSub][kPer];
  load_decays<kPer>(p, place, sub, channel, d);
  const float inverse =
      load_sub_block<kParts, kPer>(p, place, sub, part, channel, lane, s.squares, q, k);
  if (part == 0 && lane < kBlock)
    reinterpret_cast<float*>(
        record + layout.tokens())[(1 + lane / kSub) * kChunk + sub * kSub + lane % kSub] = inverse;

  float total[kPer];
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    total[e] = 1.0f;
#pragma unroll
    for (int r = 0; r < kSub; ++r) total[e] *= d[r][e], q[r][e] *= p.scale;
    s.total[sub][channel + e] = total[e];
  }
  __syncthreads();
  prepare_rows<kBf16, kDim, kPer>(p, record, s, q, k, d);
}

template <bool kBf16, int kDim>
__device__ __forceinline__ void prepare_scalar(const ChunkParams& p, const Place& place,
                                               char* record, PrepareScalarShared<kDim>& s) {
  constexpr int kThreads = kDim;
  const GradientRecord layout{kDim, false, p.delta};
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  load_rows<kDim>(p.args.q, problem.q.at(place.batch, place.begin, place.h), problem.q.t,
                  place.rows, p.dim_k, p.qk_vectors, s.q, thread, kThreads);
  load_rows<kDim>(p.args.k, problem.k.at(place.batch, place.begin, place.h), problem.k.t,
                  place.rows, p.dim_k, p.qk_vectors, s.k, thread, kThreads);
  ptx::commit_copies();

  if (warp == 0) {
    const int64_t t = place.begin + lane;
    const bool there = lane < place.rows;
    float g = 0.0f;
    if (there && problem.gate == Gate::head_constant) {
      g = static_cast<const float*>(p.args.g_gamma)[place.hv * problem.g_gamma.h];
    } else if (there && problem.gate == Gate::head) {
      const float bias =
          problem.dt_bias.present()
              ? load_element(problem.dt_bias.type, p.args.dt_bias, place.hv * problem.dt_bias.h)
              : 0.0f;
      const float x =
          load_element(problem.g.type, p.args.g, problem.g.at(place.batch, t, place.hv));
      g = log_decay(problem, x, bias, gate_factor(problem, p.args, place.hv));
    }
    g = fmaxf(g, kLowestLogDecay) * kLog2E;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float left = __shfl_up_sync(ptx::kAllLanes, g, step);
      if (lane >= step) g += left;
    }
    s.log_decay[lane] = g;
    s.beta[lane] = p.delta && there ? load_beta(problem, p.args, place.batch, t, place.hv) : 0.0f;
  }
  ptx::wait_copies<0>();
  __syncthreads();

  // Norms from the tiles: a warp takes a row of q or k at a time.
  for (int i = warp; i < 2 * kChunk; i += kThreads / 32) {
    const int row = i % kChunk;
    float norm = 1.0f;
    if (problem.qk_norm) {
      const char* tile = i < kChunk ? s.q : s.k;
      float sum = 0.0f;
      for (int c = lane * 2; c < kDim; c += 64) {
        float x0, x1;
        unpack<kBf16>(
            *reinterpret_cast<const uint32_t*>(tile + swizzled<kDim>(row, c / 8) + (c % 8) * 2), x0,
            x1);
        sum = fmaf(x0, x0, fmaf(x1, x1, sum));
      }
#pragma unroll
      for (int bit = 16; bit >= 1; bit >>= 1) sum += ptx::shuffle_xor(sum, bit);
      norm = rsqrtf(sum + 1e-6f);
    }
    if (lane == 0) (i < kChunk ? s.norm_q : s.norm_k)[row] = norm;
  }
  __syncthreads();

  if (warp == 0) {
    auto* scalars = reinterpret_cast<float*>(record + layout.scalars());
    const float g = s.log_decay[lane], last = s.log_decay[kChunk - 1];
    const float from_start = exp2f(g);
    scalars[lane] = s.norm_k[lane] * from_start;                     // what reads the state for K~
    scalars[kChunk + lane] = p.scale * s.norm_q[lane] * from_start;  // for Q~
    scalars[2 * kChunk + lane] = s.norm_k[lane] * exp2f(last - g);   // what writes it
    if (lane < 4) scalars[3 * kChunk + lane] = exp2f(last);
    auto* tokens = reinterpret_cast<float*>(record + layout.tokens());
    tokens[kChunk + lane] = s.norm_q[lane];
    tokens[2 * kChunk + lane] = s.norm_k[lane];
    tokens[3 * kChunk + lane] = g;
  }
  for (int task = warp; task < 4; task += kThreads / 32) {
    const bool is_a = (task & 1) != 0;
    const int block = task / 2;
    if (is_a && !p.delta) continue;
    float sums[4][4] = {};
    const uint32_t rows = ptx::shared_address(is_a ? s.k : s.q), keys = ptx::shared_address(s.k);
#pragma unroll
    for (int kk = 0; kk < kDim / 16; ++kk) {
      uint32_t a[4], b[4];
      load_a<kDim>(a, rows, block * kBlock, kk, lane);
      load_b<kDim>(b, keys, 0, kk, lane);
      ptx::mma_m16n8k16<kBf16>(sums[0], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(sums[1], a, b[2], b[3]);
      if (block == 0) continue;
      load_b<kDim>(b, keys, kBlock, kk, lane);
      ptx::mma_m16n8k16<kBf16>(sums[2], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(sums[3], a, b[2], b[3]);
    }
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      if (tile >= 2 * (block + 1)) continue;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = block * kBlock + lane / 4 + (e / 2) * 8;
        const int column = tile * 8 + lane % 4 * 2 + e % 2;
        const float decay = exp2f(s.log_decay[row] - s.log_decay[column]) * s.norm_k[column];
        if (is_a)
          s.a[row][column] = s.norm_k[row] * decay * sums[tile][e];
        else
          store_p<kBf16>(record, layout, row, column,
                         column <= row ? p.scale * s.norm_q[row] * decay * sums[tile][e] : 0.0f);
      }
    }
  }
}

}  // namespace chunk::gradients

// CTAs an SM that the registers must allow. Three measured best on sm_90, where the 168 registers
// this leaves suffice; other targets spill there, so their compilers choose.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
inline constexpr int kGradientPrepareCtas = 3;
#else
inline constexpr int kGradientPrepareCtas = 1;
#endif

// grid: chunk slots * HV, the value head fastest; block: chunk_prepare_threads().
template <bool kBf16, int kDim, bool kChannel>
__global__ void __launch_bounds__(chunk_prepare_threads(kDim, kChannel),
                                  kChannel&& kDim <= 128 ? kGradientPrepareCtas : 1)
    chunk_gradient_prepare_portable(const __grid_constant__ ChunkParams p) {
  char* shared = ptx::dynamic_shared();
  using Shared = std::conditional_t<kChannel, chunk::gradients::PrepareChannelShared<kDim>,
                                    chunk::gradients::PrepareScalarShared<kDim>>;
  auto& s = *reinterpret_cast<Shared*>(shared);
  const uint32_t slot = chunk::divide(blockIdx.x, p.heads_v);
  const int64_t hv = blockIdx.x - slot * p.heads_v.divisor;
  const chunk::Place place = chunk::find_place(p, slot, hv);
  if (place.rows == 0) return;
  char* record = p.records + static_cast<int64_t>(blockIdx.x) * p.record_bytes;
  if constexpr (kChannel)
    chunk::gradients::prepare_channel<kBf16, kDim>(p, place, record, s);
  else
    chunk::gradients::prepare_scalar<kBf16, kDim>(p, place, record, s);
  chunk::gradients::clear_p(record, {kDim, kChannel, p.delta}, static_cast<int>(threadIdx.x));
  if (!p.delta) return;
  __syncthreads();
  const GradientRecord layout{kDim, kChannel, true};
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  if (warp == 0)
    chunk::gradients::solve<kBf16>(s.a, s.beta, false, 1.0f, record + layout.t(),
                                   record + layout.t_low(), lane);
  if (warp == 1)
    chunk::gradients::solve<kBf16>(s.a, s.beta, true, 1.0f, record + layout.e(),
                                   record + layout.e_low(), lane);
  if (threadIdx.x < kChunk)
    reinterpret_cast<float*>(record + layout.tokens())[threadIdx.x] = s.beta[threadIdx.x];
}

}  // namespace linattn::cuda
