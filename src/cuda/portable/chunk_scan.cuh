// Scan: a warp, or where there are few of them a pair, owns 16 value columns of one chain; the
// state stays in its registers as fp32, as S^T in the accumulator layout, which is also the A
// operand's layout. Each warp of a pair has half of the key channels, and a chunk needs one
// exchange between them, of what they read from the state:
//   X^T = S^T [K~; Q~]^T,  Z = V - X_k,  R = (T B) Z,  O = X_q + P R,  S = decay . S + Kr^T R.
#pragma once

#include "cuda/portable/chunk_place.cuh"
#include "cuda/portable/chunk_scan.outputs.cuh"
#include "cuda/portable/chunk_scan.stage.cuh"

namespace linattn::cuda {
namespace chunk {

// Accumulators of 32 tokens: [i][tile] has columns 16 i + 8 tile + 2 (lane%4) (+1).
using Tokens = float[2][2][4];

// Accumulators of 32 tokens as left operands of two blocks of 16 places; kSplit: as sums of two
// 16-bit numbers.
template <Type kType, bool kSplit>
struct Rows {
  Left<kType> high[2];
  Left<kType> low[kSplit ? 2 : 1];
};

template <Type kType, bool kSplit>
__device__ __forceinline__ void pack_rows(Rows<kType, kSplit>& rows, const Tokens& x) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (!kSplit) {
      pack_left<kType>(rows.high[i], x[i][0], x[i][1]);
    } else {
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        const float* two = x[i][at / 2] + at % 2 * 2;
        pack_split<kIsBf16<kType>>(two[0], two[1], rows.high[i].word[at], rows.low[i].word[at]);
      }
    }
  }
}

// x += rows square^T for tokens 16 i and on, of a lower triangular 32x32 matrix: blocks up to i. Of
// the products of split numbers that of both low parts is left out.
template <Type kType, bool kSplit>
__device__ __forceinline__ void multiply_square(float (&x)[2][4], const Rows<kType, kSplit>& rows,
                                                uint32_t square, uint32_t square_low, int i,
                                                int lane) {
#pragma unroll
  for (int block = 0; block < 2; ++block) {
    if (block > i) continue;
    Right<kType> b;
    load_right_square<kType>(b, square, i, block, lane);
    multiply<kType>(x, rows.high[block], b);
    if constexpr (kSplit) {
      multiply<kType>(x, rows.low[block], b);
      load_right_square<kType>(b, square_low, i, block, lane);
      multiply<kType>(x, rows.high[block], b);
    }
  }
}

// The same of T, to which an error of R is not just an error: x = rows square^T. Of fp32 with the
// square's low part, and the products of upper digits, whose sums are exact or nearly so, apart
// from the others: the tensor cores would cut a common sum off, always toward zero.
template <class S>
__device__ __forceinline__ void solve_square(float (&x)[2][4],
                                             const Rows<S::kType, S::kSplit>& rows, uint32_t base,
                                             int i, int lane) {
  constexpr Type kType = S::kType;
  const uint32_t square = base + S::layout.t(), square_low = base + S::layout.t_low();
#pragma unroll
  for (int t = 0; t < 2; ++t)
#pragma unroll
    for (int e = 0; e < 4; ++e) x[t][e] = 0.0f;
  if constexpr (!kWide<kType>) {
    multiply_square<kType, S::kSplit>(x, rows, square, square_low, i, lane);
  } else {
    float low[2][4] = {};
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      if (block > i) continue;
      Right<kType> b;
      load_right_square<kType>(b, square_low, i, block, lane);
      multiply_rest(low, rows.high[block], b);
      load_right_square<kType>(b, square, i, block, lane);
      multiply_wide(x[0], low[0], rows.high[block], b.x[0]);
      multiply_wide(x[1], low[1], rows.high[block], b.x[1]);
    }
#pragma unroll
    for (int t = 0; t < 2; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[t][e] += low[t][e];
  }
}

// x_k += S^T K~^T, x_q += S^T Q~^T over the warp's channels: both share the left operands.
template <class S, bool kReadK>
__device__ __forceinline__ void read_state(const State<S::kPart>& state, uint32_t tile_k,
                                           uint32_t tile_q, const Warp& w, Tokens& x_k,
                                           Tokens& x_q) {
  constexpr Type kType = S::kType;
  constexpr int kDim = S::layout.dim, kPart = S::kPart;
  const int first = w.half * (kPart / 16);
#pragma unroll
  for (int kk = 0; kk < kPart / 16; ++kk) {
    Left<kType> a;
    pack_left<kType>(a, state.s[2 * kk], state.s[2 * kk + 1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      Right<kType> b;
      if constexpr (kReadK) {
        load_right<kType, kDim>(b, tile_k, i * 16, first + kk, w.lane);
        multiply<kType>(x_k[i], a, b);
      }
      load_right<kType, kDim>(b, tile_q, i * 16, first + kk, w.lane);
      multiply<kType>(x_q[i], a, b);
    }
  }
}

// Adds what both halves of the channels read: all of x_k, and of x_q the tokens that this warp
// writes, 16 * half and on, which end in x_q[0]. Sums of two are the same in either order, so R is.
template <bool kDelta>
__device__ __forceinline__ void exchange(float4* all, const Warp& w, Tokens& x_k, Tokens& x_q) {
  constexpr int kEach = kDelta ? 6 : 2;
  const int warp = 2 * w.group + w.half;
  float4* mine = all + warp * kEach * 32 + w.lane;
  const float4* other = all + (warp ^ 1) * kEach * 32 + w.lane;
  const auto four = [](const float (&x)[4]) { return make_float4(x[0], x[1], x[2], x[3]); };
  const auto add = [](float (&x)[4], const float4& y) {
    x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
  };
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    mine[t * 32] = w.half == 0 ? four(x_q[1][t]) : four(x_q[0][t]);
#pragma unroll
    for (int e = 0; e < 4; ++e) x_q[0][t][e] = w.half == 0 ? x_q[0][t][e] : x_q[1][t][e];
  }
  if constexpr (kDelta) {
#pragma unroll
    for (int t = 0; t < 4; ++t) mine[(2 + t) * 32] = four(x_k[t / 2][t % 2]);
  }
  ptx::sync_threads(1 + w.group, 64);
#pragma unroll
  for (int t = 0; t < 2; ++t) add(x_q[0][t], other[t * 32]);
  if constexpr (kDelta) {
#pragma unroll
    for (int t = 0; t < 4; ++t) add(x_k[t / 2][t % 2], other[(2 + t) * 32]);
  }
}

// The warp's 16 value columns of the chunk's v: as left operands where nothing else is done to
// them, else as numbers.
template <class S>
__device__ __forceinline__ void load_values(uint32_t tile, const Warp& w,
                                            Rows<S::kType, S::kSplit>& rows, Tokens& v) {
  constexpr Type kType = S::kType;
  const int row_bytes = S::v_row_bytes(w.groups), column = w.group * 16;
  if constexpr (kWide<kType>) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        v[t / 2][t % 2][e] = ptx::load_shared(tile + (8 * t + w.lane % 4 * 2 + e % 2) * row_bytes +
                                              (column + w.lane / 4 + e / 2 * 8) * 4);
    if constexpr (S::kValuesAsTheyAre) pack_rows<kType, S::kSplit>(rows, v);
  } else {
    const int m = w.lane / 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ptx::ldmatrix_x4_trans(
          rows.high[i].word,
          tile + (i * 16 + (m >> 1) * 8 + w.lane % 8) * row_bytes + column * 2 + (m & 1) * 16);
      if constexpr (!S::kValuesAsTheyAre) {
#pragma unroll
        for (int at = 0; at < 4; ++at) {
          float* two = v[i][at / 2] + at % 2 * 2;
          unpack<kIsBf16<kType>>(rows.high[i].word[at], two[0], two[1]);
        }
      }
    }
  }
}

// S = decay . S + Kr^T R.
template <class S>
__device__ __forceinline__ void update_state(State<S::kPart>& state,
                                             const Rows<S::kType, S::kSplit>& rows, uint32_t tile,
                                             const float* scalars, const Warp& w) {
  constexpr Type kType = S::kType;
  constexpr int kDim = S::layout.dim, kPart = S::kPart;
  const int first = w.half * (kPart / 16);
  const auto decay_of = [&](int j) {
    return S::layout.channel
               ? *reinterpret_cast<const float2*>(scalars + w.half * kPart + 8 * j + w.lane % 4 * 2)
               : make_float2(scalars[3 * kChunk], scalars[3 * kChunk]);
  };
  if constexpr (kWide<kType>) {
    // The tensor cores cut sums off: a chunk's is added to the state by an ordinary addition.
#pragma unroll
    for (int jj = 0; jj < kPart / 16; ++jj) {
      float sum[2][4] = {};
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        Right<kType> b;
        load_right_trans<kType, kDim>(b, tile, block * 16, first + jj, w.lane);
        multiply<kType>(sum, rows.high[block], b);
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 decay = decay_of(2 * jj + half);
        float (&s)[4] = state.s[2 * jj + half];
#pragma unroll
        for (int e = 0; e < 4; ++e) s[e] = fmaf(s[e], e % 2 == 0 ? decay.x : decay.y, sum[half][e]);
      }
    }
    return;
  } else {
#pragma unroll
    for (int j = 0; j < kPart / 8; ++j) {
      const float2 decay = decay_of(j);
      state.s[j][0] *= decay.x, state.s[j][1] *= decay.y;
      state.s[j][2] *= decay.x, state.s[j][3] *= decay.y;
    }
#pragma unroll
    for (int block = 0; block < 2; ++block)
#pragma unroll
      for (int jj = 0; jj < kPart / 16; ++jj) {
        Right<kType> b;
        load_right_trans<kType, kDim>(b, tile, block * 16, first + jj, w.lane);
        multiply<kType>(state.s[2 * jj], state.s[2 * jj + 1], rows.high[block], b);
        if constexpr (S::kSplit)
          multiply<kType>(state.s[2 * jj], state.s[2 * jj + 1], rows.low[block], b);
      }
  }
}

template <class S>
__device__ __forceinline__ void step(int left, const char* stage, float4* handed, const Warp& w,
                                     Outputs<S::kType>& outputs, State<S::kPart>& state) {
  constexpr Type kType = S::kType;
  constexpr bool kChannel = S::layout.channel, kDelta = S::layout.delta, kSplit = S::kSplit;
  const int lane = w.lane;
  const uint32_t base = ptx::shared_address(stage);
  const auto* scalars = reinterpret_cast<const float*>(stage + S::layout.scalars());

  Tokens r = {}, o = {};  // X_k and X_q
  read_state<S, kDelta>(state, base + S::kK, base + S::kQ, w, r, o);
  if constexpr (S::kParts == 2) exchange<kDelta>(handed, w, r, o);

  const int token = lane % 4 * 2;
  Rows<kType, kSplit> rows;  // V^T, then Z^T, R^T, as left operands
  {
    Tokens v;
    load_values<S>(base + S::kV, w, rows, v);
    if constexpr (!S::kValuesAsTheyAre) {
#pragma unroll
      for (int t = 0; t < 4; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          // r holds X_k
          const float read = kChannel ? 1.0f : scalars[8 * t + token + e % 2];
          float& x = r[t / 2][t % 2][e];
          x = kDelta ? fmaf(-read, x, v[t / 2][t % 2][e]) : v[t / 2][t % 2][e];
        }
    }
  }
  if constexpr (kDelta) {
    pack_rows<kType, kSplit>(rows, r);
#pragma unroll
    for (int i = 0; i < 2; ++i) solve_square<S>(r[i], rows, base, i, lane);
  }
  if constexpr (kDelta || (kWide<kType> && !S::kValuesAsTheyAre)) pack_rows<kType, kSplit>(rows, r);
  // Outputs: of all tokens, or with pairs of 16 of them.
#pragma unroll
  for (int i = 0; i < 2 / S::kParts; ++i) {
    const int of = S::kParts == 2 ? w.half : i, first = 16 * of;
    if constexpr (!kChannel) {
#pragma unroll
      for (int t = 0; t < 2; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[i][t][e] *= scalars[kChunk + first + 8 * t + token + e % 2];
    }
    multiply_square<kType, kSplit>(o[i], rows, base + S::layout.p(), base + S::layout.p_low(), of,
                                   lane);
    outputs.store(2 * i, left - first, lane, o[i]);
  }
  outputs.next_chunk();

  if constexpr (!kChannel) {
#pragma unroll
    for (int t = 0; t < 4; ++t)
#pragma unroll
      for (int e = 0; e < 4; ++e) r[t / 2][t % 2][e] *= scalars[2 * kChunk + 8 * t + token + e % 2];
    pack_rows<kType, kSplit>(rows, r);
  }
  update_state<S>(state, rows, base + S::kUpdate, scalars, w);
}

// Outputs that no live sequence owns. Threads of the CTA cover its value columns.
__device__ __forceinline__ void zero_outputs(const ChunkParams& p, const Chain& c, int64_t row,
                                             int64_t row_end, int thread, int threads,
                                             int columns) {
  const Problem& problem = p.problem;
  const int v = c.v0 + thread % columns, each = threads / columns;  // threads of a column
  if (v >= p.dim_v) return;
  for (int t = c.begin + thread / columns; t < c.end; t += each)
    store_element(problem.o.type, p.args.o, problem.o.at(c.batch, t, c.hv, v), 0.0f);
  const StateView& view = problem.intermediate_states;
  for (; row < row_end; ++row)
    for (int k = thread / columns; k < p.dim_k; k += each)
      store_element(view.type, p.args.intermediate_states,
                    view.at(c.batch, c.hv, k, v) + row * view.r, 0.0f);
}

}  // namespace chunk

// grid: (N, and one more with cu_seqlens) * HV * slabs of V, the slab fastest; kParts warps have 16
// value columns.
template <Type kType, int kDim, bool kChannel, bool kDelta, int kParts>
__global__ void __launch_bounds__(128 * kParts, 2 / kParts)
    chunk_scan_portable(const __grid_constant__ ChunkParams p) {
  using S = chunk::Stage<kType, kDim, kChannel, kDelta, kParts>;
  char* shared = ptx::dynamic_shared();
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  // Through an exchange, so that the compiler knows the warp's role to be uniform.
  const int warp = ptx::opaque(thread / 32);
  const chunk::Warp w = {thread % 32, warp / kParts, warp % kParts, threads / (32 * kParts)};
  const int lane = w.lane, columns = w.groups * 16;
  const uint32_t head = chunk::divide(blockIdx.x, p.slabs);
  const uint32_t n = chunk::divide(head, p.heads_v);
  const StateView& intermediate = problem.intermediate_states;
  const bool has_rows = intermediate.present();
  chunk::Chain c;
  c.hv = static_cast<int>(head - n * p.heads_v.divisor);
  c.h = static_cast<int>(chunk::divide(static_cast<uint32_t>(c.hv), p.group));
  c.v0 = static_cast<int>(blockIdx.x - head * p.slabs.divisor) * columns;
  c.n = static_cast<int>(n);
  if (n >= problem.num_sequences) {
    const TokenRange last = bounded_range(problem, p.args, problem.num_sequences - 1);
    c.batch = 0, c.begin = static_cast<int>(last.end);
    c.end = static_cast<int>(problem.num_tokens);
    return chunk::zero_outputs(p, c, chunk::first_row(p, problem.num_sequences, lane),
                               has_rows ? problem.intermediate_rows : 0, thread, threads, columns);
  }
  const TokenRange range = bounded_range(problem, p.args, n);
  c.batch = static_cast<int>(range.batch);
  c.begin = static_cast<int>(range.begin), c.end = static_cast<int>(range.end);
  c.record = p.records + (chunk::first_chunk(p, n) * p.heads_v.divisor + c.hv) * p.record_bytes;
  const int length = c.end - c.begin;
  const int64_t slot = problem.pool() ? start_slot(problem, p.args, n) : n;
  int64_t row = chunk::first_row(p, n, lane);
  if (slot < 0)
    return chunk::zero_outputs(
        p, c, row, row + (has_rows ? (length + problem.state_every - 1) / problem.state_every : 0),
        thread, threads, columns);
  const int v0 = c.v0 + w.group * 16;
  const int stage_bytes = S::bytes(w.groups), stages = p.scan_stages;
  auto* handed = reinterpret_cast<float4*>(shared + stages * stage_bytes);
  // The warp's rows in a stage that nobody else uses at the time.
  const auto rows_of = [&](int stage) {
    return reinterpret_cast<float*>(shared + stage * stage_bytes +
                                    warp * chunk::kStateBytes<S::kPart>);
  };
  const bool pool = problem.pool(), loads = starts_from_state(problem, p.args, n);
  // An empty sequence leaves its slot alone, bit for bit.
  if (pool && length == 0 && loads && target_slot(problem, p.args, n, 0) == slot) return;
  chunk::State<S::kPart> state = {};
  if (loads) chunk::load_state<S::kPart>(p, slot, c.hv, v0, w, rows_of(0), state);

  const int chunks = (length + kChunk - 1) / kChunk;
  // Chunks that are fetched without checks.
  const bool whole = p.qk_vectors && p.v_vectors && p.dim_k == kDim && c.v0 + columns <= p.dim_v;
  // Of fp32 none: registers are scarce, and the products take longer than the checks.
  const int full = whole && !chunk::kWide<kType> ? length / kChunk : 0;
  chunk::FullStage<S> next(p, c, w.groups, thread, threads);
  const auto fetch = [&](int chunk, int stage) {
    const uint32_t at = ptx::shared_address(shared) + stage * stage_bytes;
    if (chunk < full && w.groups == 4)
      next.template load<4>(at, thread);
    else if (chunk < full && w.groups == 2)
      next.template load<2>(at, thread);
    else if (chunk < full)
      next.template load<1>(at, thread);
    else if (chunk < chunks)
      chunk::load_stage<S>(p, c, chunk, shared + stage * stage_bytes, w.groups, thread, threads);
    ptx::commit_copies();
  };
  chunk::Outputs<kType> outputs(p, c.batch, c.begin + 16 * w.half, c.hv, v0, lane);
  __syncthreads();
  for (int i = 0; i + 1 < stages; ++i) fetch(i, i);
  int stage = 0;  // of `chunk`
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (stages > 1) {
      chunk::wait_for_stage(stages);
      __syncthreads();  // the tiles of `chunk` are there, and those of the last one free
    }
    const int free = stage == 0 ? stages - 1 : stage - 1;
    if (has_rows && static_cast<int64_t>(chunk) * kChunk % problem.state_every == 0) {
      chunk::store_state<S::kPart>(p, intermediate, p.args.intermediate_states,
                                   intermediate.at(c.batch, c.hv, 0, 0) + row * intermediate.r, v0,
                                   w, rows_of(free), state);
      ++row;
      __syncthreads();
    }
    fetch(chunk + stages - 1, free);
    if (stages == 1) {
      ptx::wait_copies<0>();
      __syncthreads();
    }
    chunk::Warp now = w;
    // Asked again, or what follows from it is kept in registers around the loop.
    if constexpr (chunk::kWide<kType>) now.lane = static_cast<int>(ptx::thread_of_cta() % 32);
    chunk::step<S>(length - chunk * kChunk, shared + stage * stage_bytes, handed, now, outputs,
                   state);
    if (stages == 1) __syncthreads();
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  __syncthreads();
  const int64_t target = pool ? target_slot(problem, p.args, c.n, 0) : c.n;
  const StateView& view = pool ? problem.initial_state : problem.final_state;
  if (!view.present() || target < 0) return;
  chunk::store_state<S::kPart>(p, view, pool ? p.args.initial_state : p.args.final_state,
                               view.at(target, c.hv, 0, 0), v0, w, rows_of(0), state);
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
