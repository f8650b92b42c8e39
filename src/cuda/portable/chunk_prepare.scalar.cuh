// Preparation with a gate a token, or none: gates and norms are scalars on accumulators.
#pragma once

#include "cuda/portable/chunk_prepare.exact.cuh"
#include "cuda/portable/chunk_prepare.record.cuh"

namespace linattn::cuda::chunk {

template <Type kType, int kDim>
struct PrepareScalarShared {
  static constexpr int kWarps = kDim / 32, kHeads = chunk_prepare_heads(kDim, false);
  alignas(16) char q[kChunk * kDim * kBytes<kType>];
  alignas(16) char k[kChunk * kDim * kBytes<kType>];
  float norm_q[kChunk], norm_k[kChunk];
  struct Head {
    alignas(16) SquareA<kType> a;
    float beta[kChunk], log_decay[kChunk];
    float rest[kWide<kType> ? kChunk : 1];  // what rounding takes from log_decay
  } head[kHeads];
  float unit[kWide<kType> ? kChunk : 1];  // of k's rows as integers
};

// The decay between two tokens of the chunk. Sums over many tokens have fewer digits behind the
// point than their difference needs in fp32.
template <Type kType, class Head>
__device__ __forceinline__ float decay_between(const Head& head, int row, int column) {
  const float difference = head.log_decay[row] - head.log_decay[column];
  if constexpr (kWide<kType>) return exp2f(difference + (head.rest[row] - head.rest[column]));
  return exp2f(difference);
}

// Running sums of the chunk's log decays, base 2, and beta of one value head, by one warp.
template <Type kType, class Head>
__device__ __forceinline__ void load_scalars(const ChunkParams& p, const Place& place, int64_t hv,
                                             Head& head, int lane) {
  const Problem& problem = p.problem;
  const int64_t t = place.begin + lane;
  const bool there = lane < place.rows;
  head.beta[lane] = p.delta && there ? load_beta(problem, p.args, place.batch, t, hv) : 0.0f;
  float g = 0.0f;
  if (there && problem.gate == Gate::head_constant) {
    g = static_cast<const float*>(p.args.g_gamma)[hv * problem.g_gamma.h];
  } else if (there && problem.gate == Gate::head) {
    const float bias =
        problem.dt_bias.present()
            ? load_element(problem.dt_bias.type, p.args.dt_bias, hv * problem.dt_bias.h)
            : 0.0f;
    const float x = load_element(problem.g.type, p.args.g, problem.g.at(place.batch, t, hv));
    g = log_decay(problem, x, bias, gate_factor(problem, p.args, hv));
  }
  g = fmaxf(g, kLowestLogDecay) * kLog2E;
  std::conditional_t<kWide<kType>, double, float> sum = g;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const auto left = __shfl_up_sync(ptx::kAllLanes, sum, step);
    if (lane >= step) sum += left;
  }
  head.log_decay[lane] = static_cast<float>(sum);
  if constexpr (kWide<kType>)
    head.rest[lane] = static_cast<float>(sum - static_cast<double>(static_cast<float>(sum)));
}

// Norms from the tiles: a warp takes a row of q or k at a time.
template <Type kType, int kDim>
__device__ __forceinline__ void row_norms(const ChunkParams& p, PrepareScalarShared<kType, kDim>& s,
                                          int warp, int lane) {
  for (int i = warp; i < 2 * kChunk; i += kDim / 32) {
    const int row = i % kChunk;
    float norm = 1.0f;
    if (p.problem.qk_norm) {
      const char* tile = i < kChunk ? s.q : s.k;
      float sum = 0.0f;
      for (int c = lane * 2; c < kDim; c += 64) {
        const char* from = tile + number_at<kType, kDim>(row, c);
        float x0, x1;
        if constexpr (kWide<kType>) {
          const float2 two = *reinterpret_cast<const float2*>(from);
          x0 = two.x, x1 = two.y;
        } else {
          unpack<kIsBf16<kType>>(*reinterpret_cast<const uint32_t*>(from), x0, x1);
        }
        sum = fmaf(x0, x0, fmaf(x1, x1, sum));
      }
#pragma unroll
      for (int bit = 16; bit >= 1; bit >>= 1) sum += ptx::shuffle_xor(sum, bit);
      norm = inverse_root<kType>(sum + 1e-6f);
    }
    if (lane == 0) (i < kChunk ? s.norm_q : s.norm_k)[row] = norm;
  }
}

// Q K^T or K K^T of 16 rows, before gates and norms: the same for all value heads of a q/k head.
template <Type kType, int kDim>
__device__ __forceinline__ void multiply_keys(const PrepareScalarShared<kType, kDim>& s, int task,
                                              float (&sums)[4][4], int lane) {
  const bool is_a = (task & 1) != 0;
  const int block = task / 2;
  const uint32_t rows = ptx::shared_address(is_a ? s.k : s.q), keys = ptx::shared_address(s.k);
#pragma unroll
  for (int kk = 0; kk < kDim / 16; ++kk) {
    Left<kType> a;
    Right<kType> b;
    load_left<kType, kDim>(a, rows, block * kBlock, kk, lane);
    load_right<kType, kDim>(b, keys, 0, kk, lane);
    multiply<kType>(sums[0], sums[1], a, b);
    if (block == 0) continue;
    load_right<kType, kDim>(b, keys, kBlock, kk, lane);
    multiply<kType>(sums[2], sums[3], a, b);
  }
}

// The task's part of P or A of one value head.
template <Type kType, int kDim>
__device__ __forceinline__ void weigh(const ChunkParams& p, const ChunkRecord& layout,
                                      PrepareScalarShared<kType, kDim>& s,
                                      typename PrepareScalarShared<kType, kDim>::Head& head,
                                      int task, const float (&sums)[4][4], char* record, int lane) {
  const bool is_a = (task & 1) != 0;
  const int block = task / 2;
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    if (tile >= 2 * (block + 1)) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = block * kBlock + lane / 4 + (e / 2) * 8;
      const int column = tile * 8 + lane % 4 * 2 + e % 2;
      const float decay = decay_between<kType>(head, row, column) * s.norm_k[column];
      if (is_a && !kWide<kType>)
        head.a[row][column] = head.beta[row] * s.norm_k[row] * decay * sums[tile][e];
      else
        store_p<kType>(record, layout, row, column,
                       column <= row ? p.scale * s.norm_q[row] * decay * sums[tile][e] : 0.0f);
    }
  }
}

// A of all of fp32's value heads, by all threads; k's rows become integers.
template <int kDim>
__device__ __forceinline__ void multiply_keys_exactly(PrepareScalarShared<Type::f32, kDim>& s,
                                                      int heads, int thread) {
  __syncthreads();  // the rows have been multiplied
  for (int row = thread / 32; row < kChunk; row += kDim / 32)
    make_integers<kDim>(s.k, row, &s.unit[row], thread % 32);
  __syncthreads();
#pragma unroll 1
  for (int task = thread; task < 256; task += kDim) {
    const int row = task / 16 * 2, key = task % 16 * 2;
    if (key > row) continue;
    double x[2][2];
    multiply_integers<kDim>(s.k, s.k, row, key, x);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = row + e / 2, j = key + e % 2;
      const double product = x[e / 2][e % 2] * static_cast<double>(s.unit[i] * s.norm_k[i]) *
                             static_cast<double>(s.unit[j] * s.norm_k[j]);
      for (int of = 0; of < heads; ++of) {
        auto& head = s.head[of];
        head.a[i][j] =
            product * static_cast<double>(head.beta[i] * decay_between<Type::f32>(head, i, j));
      }
    }
  }
}

// `heads` value heads of one q/k head, which share the products.
template <Type kType, int kDim>
__device__ __forceinline__ void prepare_scalar(const ChunkParams& p, const Place& place, int heads,
                                               char* records, PrepareScalarShared<kType, kDim>& s) {
  using Shared = PrepareScalarShared<kType, kDim>;
  const ChunkRecord layout{kDim, false, p.delta, kBytes<kType>};
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = ptx::opaque(thread / 32);  // so that branches on it are known to be uniform
  load_tile<kType, kDim>(p.args.q, problem.q.at(place.batch, place.begin, place.h), problem.q.t,
                         place.rows, p.dim_k, p.qk_vectors, s.q, thread, kDim);
  load_tile<kType, kDim>(p.args.k, problem.k.at(place.batch, place.begin, place.h), problem.k.t,
                         place.rows, p.dim_k, p.qk_vectors, s.k, thread, kDim);
  ptx::commit_copies();
  if (warp < heads) load_scalars<kType>(p, place, place.hv + warp, s.head[warp], lane);
  ptx::wait_copies<0>();
  __syncthreads();
  row_norms<kType, kDim>(p, s, warp, lane);
  __syncthreads();

#pragma unroll 1
  for (int task = warp; task < 4; task += Shared::kWarps) {
    if (task % 2 != 0 && (kWide<kType> || !p.delta)) continue;
    float sums[4][4] = {};
    multiply_keys<kType, kDim>(s, task, sums, lane);
#pragma unroll 1
    for (int j = 0; j < heads; ++j)
      weigh<kType, kDim>(p, layout, s, s.head[j], task, sums, records + j * p.record_bytes, lane);
  }
  if constexpr (kWide<kType>)
    if (p.delta) multiply_keys_exactly<kDim>(s, heads, thread);
  for (int j = 0; j < heads; ++j) clear_p<kType>(records + j * p.record_bytes, layout, thread);
  if (p.delta) __syncthreads();
  if (warp >= heads) return;
  const auto& head = s.head[warp];
  char* record = records + warp * p.record_bytes;
  auto* scalars = reinterpret_cast<float*>(record + layout.scalars());
  const float from_start = exp2f(head.log_decay[lane]);
  scalars[lane] = s.norm_k[lane] * from_start;                     // what reads the state for K~
  scalars[kChunk + lane] = p.scale * s.norm_q[lane] * from_start;  // for Q~
  scalars[2 * kChunk + lane] =
      s.norm_k[lane] * decay_between<kType>(head, kChunk - 1, lane);  // what writes it
  if (lane < 4) scalars[3 * kChunk + lane] = exp2f(head.log_decay[kChunk - 1]);
  if (p.delta) solve<kType>(head.a, head.beta, record, lane);
}

}  // namespace linattn::cuda::chunk
