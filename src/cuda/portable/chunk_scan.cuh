// Scan: a warp owns 16 value columns of one chain and every key channel of them; the state stays in
// its registers as fp32, as S^T in the accumulator layout, which is also the A operand's layout.
// So a chunk needs no exchange between warps:
//   X^T = S^T [K~; Q~]^T,  Z = V - X_k,  R = (T B) Z,  O = X_q + P R,  S = decay . S + Kr^T R.
#pragma once

#include "cuda/portable/chunk.cuh"
#include "cuda/portable/chunk_place.cuh"

namespace linattn::cuda {
namespace chunk {

template <int kDim>
struct State {
  float s[kDim / 8][4];  // tile j: value rows lane/4 (+8), channels 8j + 2 (lane%4) (+1)
};

// States travel between registers and memory through rows of shared memory, [16 v][dim k] a warp:
// with fragments addressed directly, offsets would take more registers than the state.
template <int kDim>
inline constexpr int kStateRow = kDim + 2;
template <int kDim>
inline constexpr int kStateBytes = 16 * kStateRow<kDim> * 4;

// Calls f(row element, offset in the tensor) for each element of the warp's part that exists.
template <int kDim, class F>
__device__ __forceinline__ void for_elements(const ChunkParams& p, const StateView& view,
                                             int64_t offset, int v0, int lane, float* rows, F&& f) {
#pragma unroll 1
  for (int i = lane; i < 16 * kDim; i += 32) {
    // Neighbouring lanes take neighbours in memory.
    const int v = view.k == 1 ? i / kDim : i % 16, k = view.k == 1 ? i % kDim : i / 16;
    if (v0 + v < p.dim_v && k < p.dim_k)
      f(rows[v * kStateRow<kDim> + k], offset + (v0 + v) * view.v + k * view.k);
  }
}

template <int kDim>
__device__ __forceinline__ float2* fragment(float* rows, int lane, int j, int side) {
  return reinterpret_cast<float2*>(rows + (lane / 4 + side * 8) * kStateRow<kDim> + 8 * j +
                                   lane % 4 * 2);
}

template <int kDim>
__device__ __forceinline__ void store_state(const ChunkParams& p, const StateView& view, void* data,
                                            int64_t offset, int v0, int lane, float* rows,
                                            const State<kDim>& state) {
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    *fragment<kDim>(rows, lane, j, 0) = make_float2(state.s[j][0], state.s[j][1]);
    *fragment<kDim>(rows, lane, j, 1) = make_float2(state.s[j][2], state.s[j][3]);
  }
  __syncwarp();
  for_elements<kDim>(p, view, offset, v0, lane, rows,
                     [&](float x, int64_t at) { store_element(view.type, data, at, x); });
  __syncwarp();
}

template <int kDim>
__device__ __forceinline__ void load_state(const ChunkParams& p, int64_t n, int64_t hv, int v0,
                                           int lane, float* rows, State<kDim>& state) {
  const StateView& view = p.problem.initial_state;
  for (int i = lane; i < 16 * kStateRow<kDim>; i += 32) rows[i] = 0.0f;
  __syncwarp();
  for_elements<kDim>(p, view, view.at(n, hv, 0, 0), v0, lane, rows, [&](float& x, int64_t at) {
    x = load_element(view.type, p.args.initial_state, at);
  });
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const float2 low = *fragment<kDim>(rows, lane, j, 0), high = *fragment<kDim>(rows, lane, j, 1);
    state.s[j][0] = low.x, state.s[j][1] = low.y, state.s[j][2] = high.x, state.s[j][3] = high.y;
  }
}

// Shared memory of one stage.
template <int kDim, bool kChannel, bool kDelta>
struct Stage {
  static constexpr ChunkRecord layout{kDim, kChannel, kDelta};
  static constexpr int kRecord = layout.bytes();
  // Without channel gates q and k come from the caller's tensors.
  static constexpr int kQ = kChannel ? layout.q() : kRecord;
  static constexpr int kK = kChannel ? layout.k() : kRecord + layout.rows_bytes();
  static constexpr int kUpdate = kChannel ? layout.update() : kK;
  static constexpr int kV = kRecord + (kChannel ? 0 : 2 * layout.rows_bytes());
  LINATTN_HOST_DEVICE static constexpr int v_row_bytes(int warps) { return warps * 32 + 16; }
  // Also room for the states of all warps.
  LINATTN_HOST_DEVICE static constexpr int bytes(int warps) {
    const int tiles = kV + kChunk * v_row_bytes(warps), states = warps * kStateBytes<kDim>;
    return tiles > states ? tiles : states;
  }
};

// Two stages where both fit 99 KB.
template <int kDim>
inline constexpr int kStages = kDim <= 128 ? 2 : 1;

struct Chain {
  int64_t n, hv, h;
  TokenRange range;
  int64_t first_chunk;
  int v0;  // of the CTA
};

template <int kDim, bool kChannel, bool kDelta>
__device__ __forceinline__ void load_stage(const ChunkParams& p, const Chain& c, int64_t chunk,
                                           char* stage, int warps, int thread, int threads) {
  using S = Stage<kDim, kChannel, kDelta>;
  const Problem& problem = p.problem;
  const char* record =
      p.records + ((c.first_chunk + chunk) * p.heads_v.divisor + c.hv) * p.record_bytes;
  const uint32_t to_record = ptx::shared_address(stage);
#pragma unroll 4
  for (int i = thread * 16; i < S::kRecord; i += threads * 16)
    ptx::copy_16_async(to_record + i, record + i);
  const int64_t begin = c.range.begin + chunk * kChunk;
  const int64_t left = c.range.end - begin;
  const int rows = static_cast<int>(left < kChunk ? left : kChunk);
  if constexpr (!kChannel) {
    load_rows<kDim>(p.args.q, problem.q.at(c.range.batch, begin, c.h), problem.q.t, rows, p.dim_k,
                    p.qk_vectors, stage + S::kQ, thread, threads);
    load_rows<kDim>(p.args.k, problem.k.at(c.range.batch, begin, c.h), problem.k.t, rows, p.dim_k,
                    p.qk_vectors, stage + S::kK, thread, threads);
  }
  const int units = warps * 2;
  const int unit = thread % units, step = threads / units;
  const int columns = p.dim_v - c.v0;
  const auto* v =
      static_cast<const uint16_t*>(p.args.v) + problem.v.at(c.range.batch, begin, c.hv, c.v0);
  const auto* from = v + thread / units * problem.v.t + unit * 8;
  const int row_bytes = S::v_row_bytes(warps);
  char* tile = stage + S::kV + unit * 16;
  int row = thread / units;
  if (p.v_vectors) {
    const int64_t stride = step * problem.v.t;
    const uint32_t to = ptx::shared_address(tile);
    const int present = unit * 8 < columns ? rows : 0;
    for (; row < kChunk; row += step, from += stride)
      ptx::copy_16_async(to + row * row_bytes, row < present ? from : v, row < present);
    return;
  }
  for (; row < kChunk; row += step, from += step * problem.v.t) {
    auto* elements = reinterpret_cast<uint16_t*>(tile + row * row_bytes);
#pragma unroll
    for (int e = 0; e < 8; ++e) elements[e] = row < rows && unit * 8 + e < columns ? from[e] : 0;
  }
}

// Accumulators of 32 tokens as A operands of two k blocks; kSplit: as sums of two narrow numbers.
template <bool kSplit>
struct Rows {
  uint32_t high[2][4];
  uint32_t low[kSplit ? 2 : 1][4];
};

template <bool kBf16, bool kSplit>
__device__ __forceinline__ void pack_rows(Rows<kSplit>& rows, const float (&x)[4][4]) {
#pragma unroll
  for (int t = 0; t < 4; ++t)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int at = t % 2 * 2 + side;
      if constexpr (kSplit)
        pack_split<kBf16>(x[t][2 * side], x[t][2 * side + 1], rows.high[t / 2][at],
                          rows.low[t / 2][at]);
      else
        rows.high[t / 2][at] = pack<kBf16>(x[t][2 * side], x[t][2 * side + 1]);
    }
}

// x += rows square^T for a lower triangular 32x32 matrix: tile t needs k blocks up to t / 2. Of the
// products of split numbers that of both low parts is left out.
template <bool kBf16, bool kSplit>
__device__ __forceinline__ void multiply_square(float (&x)[4][4], const Rows<kSplit>& rows,
                                                uint32_t square, uint32_t square_low, int lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int block = 0; block <= i; ++block) {
      uint32_t b[4];
      load_b_square(b, square, i, block, lane);
      ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.high[block], b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.high[block], b[2], b[3]);
      if constexpr (kSplit) {
        ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.low[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.low[block], b[2], b[3]);
        load_b_square(b, square_low, i, block, lane);
        ptx::mma_m16n8k16<kBf16>(x[2 * i], rows.high[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(x[2 * i + 1], rows.high[block], b[2], b[3]);
      }
    }
}

// o: the warp's 16 columns of the chunk's first row; `rows` of them and `columns` exist.
template <bool kBf16>
__device__ __forceinline__ void store_o(uint16_t* o, int64_t stride, int rows, int columns,
                                        bool pairs, int lane, const float (&x)[4][4]) {
  const int v = lane % 4 * 2;
  o += lane / 4 * stride + v;
#pragma unroll
  for (int t = 0; t < 4; ++t, o += 8 * stride)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const uint32_t two = ptx::movmatrix_trans(pack<kBf16>(x[t][2 * side], x[t][2 * side + 1]));
      uint16_t* to = o + side * 8;
      if (8 * t + lane / 4 < rows && v + side * 8 < columns) {
        if (pairs) {
          *reinterpret_cast<uint32_t*>(to) = two;
        } else {
          to[0] = static_cast<uint16_t>(two);
          if (v + side * 8 + 1 < columns) to[1] = static_cast<uint16_t>(two >> 16);
        }
      }
    }
}

// x_k += S^T K~^T, x_q += S^T Q~^T: both share the A operands.
template <bool kBf16, int kDim, bool kReadK>
__device__ __forceinline__ void read_state(const State<kDim>& state, uint32_t tile_k,
                                           uint32_t tile_q, int lane, float (&x_k)[4][4],
                                           float (&x_q)[4][4]) {
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
    uint32_t a[4];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const float (&s)[4] = state.s[2 * kk + tile];
      a[2 * tile] = pack<kBf16>(s[0], s[1]);
      a[2 * tile + 1] = pack<kBf16>(s[2], s[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t b[4];
      if constexpr (kReadK) {
        load_b<kDim>(b, tile_k, i * 16, kk, lane);
        ptx::mma_m16n8k16<kBf16>(x_k[2 * i], a, b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(x_k[2 * i + 1], a, b[2], b[3]);
      }
      load_b<kDim>(b, tile_q, i * 16, kk, lane);
      ptx::mma_m16n8k16<kBf16>(x_q[2 * i], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(x_q[2 * i + 1], a, b[2], b[3]);
    }
  }
}

template <bool kBf16, int kDim, bool kChannel, bool kDelta>
__device__ __forceinline__ void step(const ChunkParams& p, const Chain& c, int64_t begin,
                                     const char* stage, int warp, int warps, int lane,
                                     State<kDim>& state) {
  using S = Stage<kDim, kChannel, kDelta>;
  const uint32_t base = ptx::shared_address(stage);
  const auto* scalars = reinterpret_cast<const float*>(stage + S::layout.scalars());

  float x_k[4][4] = {}, x_q[4][4] = {};
  read_state<kBf16, kDim, kDelta>(state, base + S::kK, base + S::kQ, lane, x_k, x_q);

  // Columns of all these tiles are tokens 8t + 2 (lane%4) (+1).
  const int token = lane % 4 * 2;
  Rows<kDelta> rows;  // V^T, then Z^T, R^T, as A operands
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    const int m = lane / 8;
    ptx::ldmatrix_x4_trans(rows.high[block],
                           base + S::kV +
                               (block * 16 + (m >> 1) * 8 + lane % 8) * S::v_row_bytes(warps) +
                               warp * 32 + (m & 1) * 16);
  }
  float r[4][4];
  if constexpr (kDelta || !kChannel) {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      unpack<kBf16>(rows.high[t / 2][t % 2 * 2], r[t][0], r[t][1]);
      unpack<kBf16>(rows.high[t / 2][t % 2 * 2 + 1], r[t][2], r[t][3]);
    }
  }
  if constexpr (kDelta) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float read = kChannel ? 1.0f : scalars[8 * t + token + e % 2];
        r[t][e] = fmaf(-read, x_k[t][e], r[t][e]);
      }
    pack_rows<kBf16, kDelta>(rows, r);
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) r[t][e] = 0.0f;
    multiply_square<kBf16, kDelta>(r, rows, base + S::layout.t(), base + S::layout.t_low(), lane);
    pack_rows<kBf16, kDelta>(rows, r);
  }
  if constexpr (!kChannel) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) x_q[t][e] *= scalars[kChunk + 8 * t + token + e % 2];
  }
  multiply_square<kBf16, kDelta>(x_q, rows, base + S::layout.p(), base + S::layout.p_low(), lane);
  const int64_t left = c.range.end - begin;
  const int v0 = c.v0 + warp * 16;
  store_o<kBf16>(static_cast<uint16_t*>(p.args.o) + p.problem.o.at(c.range.batch, begin, c.hv, v0),
                 p.problem.o.t, left < kChunk ? static_cast<int>(left) : kChunk, p.dim_v - v0,
                 p.o_pairs, lane, x_q);

  if constexpr (!kChannel) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) r[t][e] *= scalars[2 * kChunk + 8 * t + token + e % 2];
    pack_rows<kBf16, kDelta>(rows, r);
  }
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
    const float2 decay = kChannel ? *reinterpret_cast<const float2*>(scalars + 8 * j + token)
                                  : make_float2(scalars[3 * kChunk], scalars[3 * kChunk]);
    state.s[j][0] *= decay.x, state.s[j][1] *= decay.y;
    state.s[j][2] *= decay.x, state.s[j][3] *= decay.y;
  }
#pragma unroll
  for (int block = 0; block < 2; ++block)
#pragma unroll
    for (int jj = 0; jj < kDim / 16; ++jj) {
      uint32_t b[4];
      load_b_trans<kDim>(b, base + S::kUpdate, block * 16, jj, lane);
      ptx::mma_m16n8k16<kBf16>(state.s[2 * jj], rows.high[block], b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(state.s[2 * jj + 1], rows.high[block], b[2], b[3]);
      if constexpr (kDelta) {
        ptx::mma_m16n8k16<kBf16>(state.s[2 * jj], rows.low[block], b[0], b[1]);
        ptx::mma_m16n8k16<kBf16>(state.s[2 * jj + 1], rows.low[block], b[2], b[3]);
      }
    }
}

// Outputs that no live sequence owns. Threads of the CTA cover its value columns.
__device__ __forceinline__ void zero_outputs(const ChunkParams& p, const Chain& c, int64_t row,
                                             int64_t row_end, int thread, int columns) {
  const Problem& problem = p.problem;
  const int v = c.v0 + thread % columns;
  if (v >= p.dim_v) return;
  for (int64_t t = c.range.begin + thread / columns; t < c.range.end; t += 2)
    store_element(problem.o.type, p.args.o, problem.o.at(c.range.batch, t, c.hv, v), 0.0f);
  const StateView& view = problem.intermediate_states;
  for (; row < row_end; ++row)
    for (int k = thread / columns; k < p.dim_k; k += 2)
      store_element(view.type, p.args.intermediate_states,
                    view.at(c.range.batch, c.hv, k, v) + row * view.r, 0.0f);
}

}  // namespace chunk

// grid: (N, and one more with cu_seqlens) * HV * slabs of V, the slab fastest; a warp has 16 value
// columns.
template <bool kBf16, int kDim, bool kChannel, bool kDelta>
__global__ void __launch_bounds__(128, 2)
    chunk_scan_portable(const __grid_constant__ ChunkParams p) {
  using S = chunk::Stage<kDim, kChannel, kDelta>;
  extern __shared__ __align__(16) char shared[];
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x), warps = threads / 32;
  const uint32_t head = chunk::divide(blockIdx.x, p.slabs);
  const uint32_t n = chunk::divide(head, p.heads_v);
  const StateView& intermediate = problem.intermediate_states;
  const bool has_rows = intermediate.present();
  chunk::Chain c;
  c.hv = head - n * p.heads_v.divisor;
  c.h = chunk::divide(static_cast<uint32_t>(c.hv), p.group);
  c.v0 = static_cast<int>(blockIdx.x - head * p.slabs.divisor) * warps * 16;
  c.n = n;
  if (n >= problem.num_sequences) {
    const TokenRange last = bounded_range(problem, p.args, problem.num_sequences - 1);
    c.range = {0, last.end, problem.num_tokens};
    return chunk::zero_outputs(p, c, chunk::first_row(p, problem.num_sequences, lane),
                               has_rows ? problem.intermediate_rows : 0, thread, warps * 16);
  }
  c.range = bounded_range(problem, p.args, n);
  c.first_chunk = chunk::first_chunk(p, n);
  const int64_t length = c.range.length();
  const int64_t slot = problem.pool() ? start_slot(problem, p.args, n) : n;
  int64_t row = chunk::first_row(p, n, lane);
  if (slot < 0)
    return chunk::zero_outputs(
        p, c, row, row + (has_rows ? (length + problem.state_every - 1) / problem.state_every : 0),
        thread, warps * 16);
  const int v0 = c.v0 + warp * 16;
  const int stage_bytes = S::bytes(warps);
  constexpr int kStages = chunk::kStages<kDim>;
  const auto stage_of = [&](int chunk) {
    return shared + (kStages == 1 ? 0 : chunk % 2 * stage_bytes);
  };
  // The warp's rows in a stage that nobody else uses at the time.
  const auto rows_of = [&](int chunk) {
    return reinterpret_cast<float*>(stage_of(chunk) + warp * chunk::kStateBytes<kDim>);
  };
  chunk::State<kDim> state = {};
  const bool loads = starts_from_state(problem, p.args, n);
  if (loads) chunk::load_state<kDim>(p, slot, c.hv, v0, lane, rows_of(0), state);

  const int chunks = static_cast<int>((length + kChunk - 1) / kChunk);
  const auto fetch = [&](int chunk) {
    if (chunk < chunks)
      chunk::load_stage<kDim, kChannel, kDelta>(p, c, chunk, stage_of(chunk), warps, thread,
                                                threads);
    ptx::commit_copies();
  };
  __syncthreads();
  if (kStages == 2) fetch(0);
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (kStages == 2) {
      ptx::wait_copies<0>();
      __syncthreads();  // the tiles of `chunk` are there, and the other stage is free
    }
    if (has_rows && static_cast<int64_t>(chunk) * kChunk % problem.state_every == 0) {
      chunk::store_state<kDim>(p, intermediate, p.args.intermediate_states,
                               intermediate.at(c.range.batch, c.hv, 0, 0) + row * intermediate.r,
                               v0, lane, rows_of(chunk + 1), state);
      ++row;
      __syncthreads();
    }
    fetch(kStages == 2 ? chunk + 1 : chunk);
    if (kStages == 1) {
      ptx::wait_copies<0>();
      __syncthreads();
    }
    chunk::step<kBf16, kDim, kChannel, kDelta>(p, c,
                                               c.range.begin + static_cast<int64_t>(chunk) * kChunk,
                                               stage_of(chunk), warp, warps, lane, state);
    if (kStages == 1) __syncthreads();
  }
  __syncthreads();
  // An empty sequence leaves its slot alone, bit for bit.
  const bool pool = problem.pool();
  const int64_t target = pool ? target_slot(problem, p.args, n, 0) : n;
  const StateView& view = pool ? problem.initial_state : problem.final_state;
  if (!view.present() || target < 0 || (pool && length == 0 && loads && target == slot)) return;
  chunk::store_state<kDim>(p, view, pool ? p.args.initial_state : p.args.final_state,
                           view.at(target, c.hv, 0, 0), v0, lane, rows_of(0), state);
}

// Chunks before each sequence, one CTA of 1024 threads.
template <int kUnused>
__global__ void __launch_bounds__(1024)
    chunk_index_portable(const __grid_constant__ ChunkParams p) {
  __shared__ long long sums[32];
  __shared__ long long before;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  if (thread == 0) before = 0, p.chunk_begin[0] = 0;
  for (int64_t first = 0; first < p.problem.num_sequences; first += 1024) {
    const int64_t n = first + thread;
    long long chunks = 0;
    if (n < p.problem.num_sequences) {
      chunks = (bounded_range(p.problem, p.args, n).length() + kChunk - 1) / kChunk;
    }
    for (int step = 1; step < 32; step *= 2) {
      const long long left = __shfl_up_sync(ptx::kAllLanes, chunks, step);
      if (lane >= step) chunks += left;
    }
    if (lane == 31) sums[warp] = chunks;
    __syncthreads();
    long long base = before;
    for (int w = 0; w < warp; ++w) base += sums[w];
    if (n < p.problem.num_sequences) p.chunk_begin[n + 1] = base + chunks;
    __syncthreads();
    if (thread == 1023) before = base + chunks;
    __syncthreads();
  }
}

}  // namespace linattn::cuda
