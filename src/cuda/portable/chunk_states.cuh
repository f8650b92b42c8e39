// The two scans of the backward pass, which need nothing of each other and run side by side: from
// the first chunk to the last for the states before each, and from the last to the first for the
// gradients of the states after each. As in the forward scan a warp owns 16 value columns.
//   forward  E = (I + A B)^-1 (V - K~ S),  S <- decay . S + Kr^T B E
//   reverse  dR = (I + B A)^-T (P^T dO + Kr dS),  dV = B dR,  dS <- decay . dS + Q~^T dO - K~^T dV
// The additive update has V for B E and dV = P^T dO + Kr dS.
#pragma once

#include "cuda/portable/chunk_gradient.params.h"
#include "cuda/portable/chunk_states.tools.cuh"

namespace linattn::cuda {
namespace chunk::gradients {

template <int kDim, bool kChannel, bool kDelta>
struct GradientStage {
  static constexpr GradientRecord layout{kDim, kChannel, kDelta};
  static constexpr int kRecord = layout.bytes();
  static constexpr int kQ = kChannel ? layout.q() : kRecord;
  static constexpr int kK = kChannel ? layout.k() : kRecord + layout.rows_bytes();
  static constexpr int kUpdate = kChannel ? layout.update() : kK;
  static constexpr int kV = kRecord + (kChannel ? 0 : 2 * layout.rows_bytes());  // or dO
  LINATTN_HOST_DEVICE static constexpr int bytes(int warps) {
    const int tiles = kV + kChunk * column_row_bytes(warps), states = warps * kStateBytes<kDim>;
    return tiles > states ? tiles : states;
  }
};

__device__ __forceinline__ void copy_bytes(char* to, const char* from, int begin, int end,
                                           int thread, int threads) {
  const uint32_t address = ptx::shared_address(to);
#pragma unroll 4
  for (int i = begin + thread * 16; i < end; i += threads * 16)
    ptx::copy_16_async(address + i, from + i);
}

template <int kDim, bool kChannel, bool kDelta>
__device__ __forceinline__ void load_gradient_stage(const ChunkGradientParams& g, const Chain& c,
                                                    bool reverse, int64_t chunk, char* stage,
                                                    int warps, int thread) {
  using S = GradientStage<kDim, kChannel, kDelta>;
  constexpr GradientRecord layout = S::layout;
  const ChunkParams& p = g.chunk;
  const Problem& problem = p.problem;
  const int threads = warps * 32;
  const char* record =
      p.records + ((c.first_chunk + chunk) * p.heads_v.divisor + c.hv) * p.record_bytes;
  if (reverse) {
    copy_bytes(stage, record, 0, layout.e(), thread, threads);
  } else {
    copy_bytes(stage, record, layout.scalars(), layout.q(), thread, threads);
    copy_bytes(stage, record, kChannel ? layout.update() : layout.q(), S::kRecord, thread, threads);
  }
  const int64_t begin = c.range.begin + chunk * kChunk;
  const int64_t left = c.range.end - begin;
  const int rows = static_cast<int>(left < kChunk ? left : kChunk);
  if constexpr (!kChannel) {
    if (reverse)
      load_rows<kDim>(p.args.q, problem.q.at(c.range.batch, begin, c.h), problem.q.t, rows, p.dim_k,
                      p.qk_vectors, stage + S::kQ, thread, threads);
    load_rows<kDim>(p.args.k, problem.k.at(c.range.batch, begin, c.h), problem.k.t, rows, p.dim_k,
                    p.qk_vectors, stage + S::kK, thread, threads);
  }
  if (reverse)
    load_columns(problem.do_, p.args.do_, c, begin, rows, p.dim_v, g.do_vectors, stage + S::kV,
                 warps, thread);
  else
    load_columns(problem.v, p.args.v, c, begin, rows, p.dim_v, p.v_vectors, stage + S::kV, warps,
                 thread);
}

// x += S^T tile^T, tokens by columns.
template <int kDim>
__device__ __forceinline__ void read_state_once(const State<kDim>& state, uint32_t tile, int lane,
                                                float (&x)[4][4]) {
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
    uint32_t a[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float (&s)[4] = state.s[2 * kk + half];
      a[2 * half] = pack<kBf16>(s[0], s[1]);
      a[2 * half + 1] = pack<kBf16>(s[2], s[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t b[4];
      load_b<kDim>(b, tile, i * 16, kk, lane);
      ptx::mma_m16n8k16<kBf16>(x[2 * i], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], a, b[2], b[3]);
    }
  }
}

// B operands of n-tiles 2i, 2i+1 and k block b of the transpose of a 32x32 matrix.
__device__ __forceinline__ void load_b_square_trans(uint32_t (&b)[4], uint32_t square, int i,
                                                    int block, int lane) {
  const int m = lane / 8;
  const int row = block * 16 + (m & 1) * 8 + lane % 8;
  ptx::ldmatrix_x4_trans(b, square + swizzled_square(row, i * 2 + (m >> 1)));
}

// x += rows square for a lower triangular matrix; kSquareSplit: it has a low part.
template <bool kSplit, bool kSquareSplit>
__device__ __forceinline__ void multiply_square_trans(float (&x)[4][4], const Rows<kSplit>& rows,
                                                      uint32_t square, uint32_t square_low,
                                                      int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int block = i; block < 2; ++block) {
      uint32_t b[4];
      load_b_square_trans(b, square, i, block, lane);
      ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.high[block], b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.high[block], b[2], b[3]);
      if constexpr (kSplit) {
        ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.low[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.low[block], b[2], b[3]);
      }
      if constexpr (kSquareSplit) {
        load_b_square_trans(b, square_low, i, block, lane);
        ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.high[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.high[block], b[2], b[3]);
      }
    }
}

// The warp's 16 rows of a state's image.
template <int kDim>
__device__ __forceinline__ void store_state_image(char* rows, const State<kDim>& state, int lane) {
  char* to = rows + lane / 4 * kDim * 2 + lane % 4 * 16;
#pragma unroll
  for (int side = 0; side < 2; ++side, to += 8 * kDim * 2)
#pragma unroll
    for (int group = 0; group < kDim / 32; ++group) {
      uint32_t words[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float (&s)[4] = state.s[4 * group + j];
        words[j] = pack<kBf16>(s[2 * side], s[2 * side + 1]);
      }
      *reinterpret_cast<uint4*>(to + group * 64) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// The same for 32 tokens, as a sum of two narrow numbers.
__device__ __forceinline__ void store_token_image(char* rows, int64_t low, const float (&x)[4][4],
                                                  int lane) {
  char* to = rows + lane / 4 * kChunk * 2 + lane % 4 * 16;
#pragma unroll
  for (int side = 0; side < 2; ++side, to += 8 * kChunk * 2) {
    uint32_t high[4], rest[4];
#pragma unroll
    for (int t = 0; t < 4; ++t)
      pack_split<kBf16>(x[t][2 * side], x[t][2 * side + 1], high[t], rest[t]);
    *reinterpret_cast<uint4*>(to) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(to + low) = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }
}

// x *= factor of each column's token.
__device__ __forceinline__ void scale_tokens(float (&x)[4][4], const float* factors, int lane) {
#pragma unroll
  for (int t = 0; t < 4; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) x[t][e] *= factors[8 * t + lane % 4 * 2 + e % 2];
}

__device__ __forceinline__ void unpack_rows(float (&x)[4][4], const uint32_t (&rows)[2][4]) {
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    unpack<kBf16>(rows[t / 2][t % 2 * 2], x[t][0], x[t][1]);
    unpack<kBf16>(rows[t / 2][t % 2 * 2 + 1], x[t][2], x[t][3]);
  }
}

// What a warp's columns of one chunk write to.
struct ChunkPlace {
  int64_t index;  // chunk slot * HV + value head
  int64_t begin;  // its first token
  int v0;         // the warp's first column
};

__device__ __forceinline__ char* token_image(const ChunkGradientParams& g, char* images,
                                             const ChunkPlace& at) {
  return images + (2 * at.index * g.value_rows + at.v0) * kChunk * 2;
}

template <int kDim, bool kChannel, bool kDelta>
__device__ __forceinline__ void step_forward(const ChunkGradientParams& g, const ChunkPlace& at,
                                             const char* stage, int warp, int warps, int lane,
                                             State<kDim>& state) {
  using S = GradientStage<kDim, kChannel, kDelta>;
  const uint32_t base = ptx::shared_address(stage);
  const auto* scalars = reinterpret_cast<const float*>(stage + S::layout.scalars());
  const auto* beta = reinterpret_cast<const float*>(stage + S::layout.tokens());
  const bool exists = at.v0 < g.value_rows;
  const int64_t image_row = at.index * g.value_rows + at.v0;
  const int64_t low = static_cast<int64_t>(g.value_rows) * kChunk * 2;
  if (exists) store_state_image<kDim>(g.states + image_row * kDim * 2, state, lane);

  Rows<kDelta> rows;
  load_columns_transposed(rows.high, base + S::kV, warp, warps, lane);
  if constexpr (kDelta || !kChannel) {
    float r[4][4];
    unpack_rows(r, rows.high);
    if constexpr (kDelta) {
      float x[4][4] = {};
      read_state_once<kDim>(state, base + S::kK, lane, x);
      if constexpr (!kChannel) scale_tokens(x, scalars, lane);
      decay_state<kDim, kChannel>(state, scalars, lane);
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) r[t][e] -= x[t][e];
      pack_rows<kBf16, kDelta>(rows, r);
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) r[t][e] = 0.0f;
      multiply_square<kBf16, kDelta>(r, rows, base + S::layout.e(), base + S::layout.e_low(), lane);
      if (exists) store_token_image(token_image(g, g.errors, at), low, r, lane);
      scale_tokens(r, beta, lane);
    }
    if constexpr (!kChannel) scale_tokens(r, scalars + 2 * kChunk, lane);
    pack_rows<kBf16, kDelta>(rows, r);
  }
  if constexpr (!kDelta) decay_state<kDim, kChannel>(state, scalars, lane);
  update_state<kBf16, kDim>(state, rows, base + S::kUpdate, lane);
}

// dv: the warp's 16 columns of the chunk.
__device__ __forceinline__ void store_dv(const ChunkGradientParams& g, const Chain& c,
                                         const ChunkPlace& at, int lane, const float (&x)[4][4]) {
  const ChunkParams& p = g.chunk;
  const TokenView& view = p.problem.dv;
  if (!view.present()) return;
  const int64_t left = c.range.end - at.begin;
  const int rows = static_cast<int>(left < kChunk ? left : kChunk), columns = p.dim_v - at.v0;
  if (g.dv_pairs) {
    auto* to = static_cast<uint16_t*>(p.args.dv) + view.at(c.range.batch, at.begin, c.hv, at.v0);
    store_o<kBf16>(to, view.t, rows, columns, true, lane, x);
    return;
  }
#pragma unroll
  for (int t = 0; t < 4; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int token = 8 * t + lane % 4 * 2 + e % 2, v = lane / 4 + e / 2 * 8;
      if (token < rows && v < columns)
        store_element(view.type, p.args.dv,
                      view.at(c.range.batch, at.begin + token, c.hv, at.v0 + v), x[t][e]);
    }
}

template <int kDim, bool kChannel, bool kDelta>
__device__ __forceinline__ void step_reverse(const ChunkGradientParams& g, const Chain& c,
                                             const ChunkPlace& at, const char* stage, int warp,
                                             int warps, int lane, State<kDim>& state) {
  using S = GradientStage<kDim, kChannel, kDelta>;
  const uint32_t base = ptx::shared_address(stage);
  const auto* scalars = reinterpret_cast<const float*>(stage + S::layout.scalars());
  const auto* beta = reinterpret_cast<const float*>(stage + S::layout.tokens());
  const bool exists = at.v0 < g.value_rows;
  const int64_t image_row = at.index * g.value_rows + at.v0;
  const int64_t low = static_cast<int64_t>(g.value_rows) * kChunk * 2;
  if (exists) store_state_image<kDim>(g.state_gradients + image_row * kDim * 2, state, lane);

  Rows<false> d_o;
  load_columns_transposed(d_o.high, base + S::kV, warp, warps, lane);
  float x[4][4] = {};
  read_state_once<kDim>(state, base + S::kUpdate, lane, x);
  if constexpr (!kChannel) scale_tokens(x, scalars + 2 * kChunk, lane);
  multiply_square_trans<false, kDelta>(x, d_o, base + S::layout.p(), base + S::layout.p_low(),
                                       lane);
  // What dO adds to the state waits for nothing, and fills the time until dR is there.
  decay_state<kDim, kChannel>(state, scalars, lane);
  if constexpr (!kChannel) {
    float y[4][4];
    unpack_rows(y, d_o.high);
    scale_tokens(y, scalars + kChunk, lane);
    pack_rows<kBf16, false>(d_o, y);
  }
  update_state<kBf16, kDim>(state, d_o, base + S::kQ, lane);
  Rows<kDelta> rows;
  if constexpr (kDelta) {
    pack_rows<kBf16, true>(rows, x);
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[t][e] = 0.0f;
    multiply_square_trans<true, true>(x, rows, base + S::layout.t(), base + S::layout.t_low(),
                                      lane);
    if (exists) store_token_image(token_image(g, g.error_gradients, at), low, x, lane);
    scale_tokens(x, beta, lane);
  }
  store_dv(g, c, at, lane, x);
  if constexpr (kDelta) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[t][e] = -x[t][e];
    if constexpr (!kChannel) scale_tokens(x, scalars, lane);
    pack_rows<kBf16, true>(rows, x);
    update_state<kBf16, kDim>(state, rows, base + S::kK, lane);
  }
}

// Gradients of tokens that no sequence owns. The slab has `columns` of V; its first also has what
// is not per value column.
__device__ __forceinline__ void zero_gradients(const ChunkGradientParams& g, const Chain& c,
                                               int thread, int threads, int columns) {
  const Problem& p = g.chunk.problem;
  const linattn_args& args = g.chunk.args;
  const auto zero = [&](const TokenView& view, void* data, int64_t head, int64_t first,
                        int64_t last) {
    if (!view.present()) return;
    for (int64_t t = c.range.begin; t < c.range.end; ++t)
      for (int64_t i = first + thread; i < last; i += threads)
        store_element(view.type, data, view.at(c.range.batch, t, head, i), 0.0f);
  };
  const int64_t last = c.v0 + columns;
  zero(p.dv, args.dv, c.hv, c.v0, last < p.dim_v ? last : p.dim_v);
  if (c.v0 != 0) return;
  zero(p.dg, args.dg, c.hv, 0, g.gate_dim);
  zero(p.dbeta, args.dbeta, c.hv, 0, 1);
  if (c.hv % p.group() != 0) return;
  zero(p.dq, args.dq, c.h, 0, p.dim_k);
  zero(p.dk, args.dk, c.h, 0, p.dim_k);
}

}  // namespace chunk::gradients

// grid: (N, and one more with cu_seqlens) * HV * slabs of V * the two scans, these fastest.
template <int kDim, bool kChannel, bool kDelta>
__global__ void __launch_bounds__(128, 2)
    chunk_states_portable(const __grid_constant__ ChunkGradientParams g) {
  using S = chunk::gradients::GradientStage<kDim, kChannel, kDelta>;
  const ChunkParams& p = g.chunk;
  const Problem& problem = p.problem;
  char* shared = ptx::dynamic_shared();
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x), warps = threads / 32;
  const bool reverse = (blockIdx.x & 1) != 0;
  const uint32_t task = blockIdx.x / 2;
  const uint32_t head = chunk::divide(task, p.slabs);
  const uint32_t n = chunk::divide(head, p.heads_v);
  chunk::gradients::Chain c;
  c.n = n;
  c.hv = head - n * p.heads_v.divisor;
  c.h = chunk::divide(static_cast<uint32_t>(c.hv), p.group);
  c.v0 = static_cast<int>(task - head * p.slabs.divisor) * warps * 16;
  if (n >= problem.num_sequences) {
    c.range = {0, bounded_range(problem, p.args, problem.num_sequences - 1).end,
               problem.num_tokens};
    if (!reverse) chunk::gradients::zero_gradients(g, c, thread, threads, warps * 16);
    return;
  }
  c.range = bounded_range(problem, p.args, n);
  c.first_chunk = chunk::first_chunk(p, n);
  const int stage_bytes = S::bytes(warps);
  constexpr int kStages = chunk::gradients::kStages<kDim>;
  const auto stage_of = [&](int step) {
    return shared + (kStages == 1 ? 0 : step % 2 * stage_bytes);
  };
  const int v0 = c.v0 + warp * 16;
  auto* rows = reinterpret_cast<float*>(shared + warp * chunk::gradients::kStateBytes<kDim>);
  chunk::gradients::State<kDim> state = {};
  const StateView& start = reverse ? problem.dht : problem.initial_state;
  if (start.present())
    chunk::gradients::load_state<kDim>(p, start, reverse ? p.args.dht : p.args.initial_state, n,
                                       c.hv, v0, lane, rows, state);

  const int chunks = static_cast<int>((c.range.length() + kChunk - 1) / kChunk);
  const auto chunk_of = [&](int step) { return reverse ? chunks - 1 - step : step; };
  const auto fetch = [&](int step) {
    if (step < chunks)
      chunk::gradients::load_gradient_stage<kDim, kChannel, kDelta>(g, c, reverse, chunk_of(step),
                                                                    stage_of(step), warps, thread);
    ptx::commit_copies();
  };
  ptx::sync_cta();
  if (kStages == 2) fetch(0);
#pragma unroll 1
  for (int step = 0; step < chunks; ++step) {
    if (kStages == 2) {
      ptx::wait_copies<0>();
      ptx::sync_cta();  // this step's tiles are there, and the other stage is free
    }
    fetch(kStages == 2 ? step + 1 : step);
    if (kStages == 1) {
      ptx::wait_copies<0>();
      ptx::sync_cta();
    }
    const int64_t chunk = chunk_of(step);
    const chunk::gradients::ChunkPlace at{(c.first_chunk + chunk) * p.heads_v.divisor + c.hv,
                                          c.range.begin + chunk * kChunk, v0};
    if (reverse)
      chunk::gradients::step_reverse<kDim, kChannel, kDelta>(g, c, at, stage_of(step), warp, warps,
                                                             lane, state);
    else
      chunk::gradients::step_forward<kDim, kChannel, kDelta>(g, at, stage_of(step), warp, warps,
                                                             lane, state);
    if (kStages == 1) ptx::sync_cta();
  }
  ptx::sync_cta();
  if (reverse && problem.dh0.present())
    chunk::gradients::store_state<kDim>(p, problem.dh0, p.args.dh0, problem.dh0.at(n, c.hv, 0, 0),
                                        v0, lane, rows, state);
}

}  // namespace linattn::cuda
