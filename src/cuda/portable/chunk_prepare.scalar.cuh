// Preparation with a gate a token, or none: gates and norms are scalars on accumulators.
#pragma once

#include "cuda/portable/chunk_prepare.record.cuh"

namespace linattn::cuda::chunk {

template <int kDim>
struct PrepareScalarShared {
  static constexpr int kWarps = kDim / 32, kHeads = chunk_prepare_heads(kDim, false);
  alignas(16) char q[kChunk * kDim * 2];
  alignas(16) char k[kChunk * kDim * 2];
  float norm_q[kChunk], norm_k[kChunk];
  struct Head {
    float a[kChunk][kChunk + 4];
    float beta[kChunk], log_decay[kChunk];
  } head[kHeads];
};

// Running sums of the chunk's log decays, base 2, and beta of one value head, by one warp.
template <class Head>
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
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float left = __shfl_up_sync(ptx::kAllLanes, g, step);
    if (lane >= step) g += left;
  }
  head.log_decay[lane] = g;
}

// Norms from the tiles: a warp takes a row of q or k at a time.
template <bool kBf16, int kDim>
__device__ __forceinline__ void row_norms(const ChunkParams& p, PrepareScalarShared<kDim>& s,
                                          int warp, int lane) {
  for (int i = warp; i < 2 * kChunk; i += kDim / 32) {
    const int row = i % kChunk;
    float norm = 1.0f;
    if (p.problem.qk_norm) {
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
}

// Q K^T or K K^T of 16 rows, before gates and norms: the same for all value heads of a q/k head.
template <bool kBf16, int kDim>
__device__ __forceinline__ void multiply_keys(const PrepareScalarShared<kDim>& s, int task,
                                              float (&sums)[4][4], int lane) {
  const bool is_a = (task & 1) != 0;
  const int block = task / 2;
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
}

// The task's part of P or A of one value head.
template <bool kBf16, int kDim>
__device__ __forceinline__ void weigh(const ChunkParams& p, const ChunkRecord& layout,
                                      PrepareScalarShared<kDim>& s,
                                      typename PrepareScalarShared<kDim>::Head& head, int task,
                                      const float (&sums)[4][4], char* record, int lane) {
  const bool is_a = (task & 1) != 0;
  const int block = task / 2;
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    if (tile >= 2 * (block + 1)) continue;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int row = block * kBlock + lane / 4 + (e / 2) * 8;
      const int column = tile * 8 + lane % 4 * 2 + e % 2;
      const float decay = exp2f(head.log_decay[row] - head.log_decay[column]) * s.norm_k[column];
      if (is_a)
        head.a[row][column] = head.beta[row] * s.norm_k[row] * decay * sums[tile][e];
      else
        store_p<kBf16>(record, layout, row, column,
                       column <= row ? p.scale * s.norm_q[row] * decay * sums[tile][e] : 0.0f);
    }
  }
}

// `heads` value heads of one q/k head, which share the products.
template <bool kBf16, int kDim>
__device__ __forceinline__ void prepare_scalar(const ChunkParams& p, const Place& place, int heads,
                                               char* records, PrepareScalarShared<kDim>& s) {
  using Shared = PrepareScalarShared<kDim>;
  const ChunkRecord layout{kDim, false, p.delta};
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = ptx::opaque(thread / 32);  // so that branches on it are known to be uniform
  load_rows<kDim>(p.args.q, problem.q.at(place.batch, place.begin, place.h), problem.q.t,
                  place.rows, p.dim_k, p.qk_vectors, s.q, thread, kDim);
  load_rows<kDim>(p.args.k, problem.k.at(place.batch, place.begin, place.h), problem.k.t,
                  place.rows, p.dim_k, p.qk_vectors, s.k, thread, kDim);
  ptx::commit_copies();
  if (warp < heads) load_scalars(p, place, place.hv + warp, s.head[warp], lane);
  ptx::wait_copies<0>();
  __syncthreads();
  row_norms<kBf16, kDim>(p, s, warp, lane);
  __syncthreads();

#pragma unroll 1
  for (int task = warp; task < 4; task += Shared::kWarps) {
    if (task % 2 != 0 && !p.delta) continue;
    float sums[4][4] = {};
    multiply_keys<kBf16, kDim>(s, task, sums, lane);
#pragma unroll 1
    for (int j = 0; j < heads; ++j)
      weigh<kBf16, kDim>(p, layout, s, s.head[j], task, sums, records + j * p.record_bytes, lane);
  }
  for (int j = 0; j < heads; ++j) clear_p(records + j * p.record_bytes, layout, thread);
  if (p.delta) __syncthreads();
  if (warp >= heads) return;
  const auto& head = s.head[warp];
  char* record = records + warp * p.record_bytes;
  auto* scalars = reinterpret_cast<float*>(record + layout.scalars());
  const float g = head.log_decay[lane], last = head.log_decay[kChunk - 1];
  const float from_start = exp2f(g);
  scalars[lane] = s.norm_k[lane] * from_start;                     // what reads the state for K~
  scalars[kChunk + lane] = p.scale * s.norm_q[lane] * from_start;  // for Q~
  scalars[2 * kChunk + lane] = s.norm_k[lane] * exp2f(last - g);   // what writes it
  if (lane < 4) scalars[3 * kChunk + lane] = exp2f(last);
  if (p.delta) solve<kBf16>(head.a, head.beta, record, lane);
}

}  // namespace linattn::cuda::chunk
