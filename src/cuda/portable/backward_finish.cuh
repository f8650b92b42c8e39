// After the token kernel: sums over slabs of V and over the value heads of a q/k head, the chain
// rules of norm, gate and sigmoid, and zeros in the rows that no sequence owns. Every sum has a
// fixed order.
#pragma once

#include "cuda/portable/backward.params.h"
#include "cuda/portable/gradient.cuh"

namespace linattn::cuda {
namespace backward {

inline constexpr int kFinishWarps = 8;
inline constexpr int kLaneChannels = 8;  // channels lane, lane + 32, .. of up to 256

// dx of y = x r, r = 1 / sqrt(x.x + 1e-6), from dy: r (dy - y (y.dy)); without the norm dy itself.
__device__ __forceinline__ void finish_row(const BackwardParams& p, const TokenView& view,
                                           const void* data, const TokenView& out_view, void* out,
                                           const float* sums, int64_t b, int64_t t, int64_t h,
                                           bool owned, int lane) {
  const Problem& problem = p.problem;
  const int64_t group = problem.group(), k = problem.dim_k;
  float dy[kLaneChannels], x[kLaneChannels];
  float squares = 0.0f, along = 0.0f;
#pragma unroll
  for (int e = 0; e < kLaneChannels; ++e) {
    const int channel = lane + e * 32;
    dy[e] = x[e] = 0.0f;
    if (!owned || channel >= k) continue;
    for (int64_t slab = 0; slab < p.slabs; ++slab)
      for (int64_t m = 0; m < group; ++m)
        dy[e] +=
            sums[((slab * p.rows + b * problem.num_tokens + t) * problem.heads_v + h * group + m) *
                     k +
                 channel];
    if (!problem.qk_norm) continue;
    x[e] = load_element(view.type, data, view.at(b, t, h, channel));
    squares = fmaf(x[e], x[e], squares);
    along = fmaf(x[e], dy[e], along);
  }
  float scale = 1.0f;
  if (problem.qk_norm) {
    scale = gradient::inverse_norm(gradient::warp_sum(squares));
    along = gradient::warp_sum(along) * scale * scale;
  } else {
    along = 0.0f;
  }
#pragma unroll
  for (int e = 0; e < kLaneChannels; ++e) {
    const int channel = lane + e * 32;
    if (channel < k)
      store_element(out_view.type, out, out_view.at(b, t, h, channel),
                    scale * fmaf(-x[e], along, dy[e]));
  }
}

// Sum over the CTA, in every thread.
__device__ __forceinline__ float cta_sum(float x, int thread, float (&sums)[kFinishWarps]) {
  x = gradient::warp_sum(x);
  if (thread % 32 == 0) sums[thread / 32] = x;
  ptx::sync_cta();
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kFinishWarps; ++w) sum += sums[w];
  ptx::sync_cta();
  return sum;
}

// Gate and beta of one value head's tokens [begin, end): a thread has a channel and all tokens, or
// a token where the gate is one number.
__device__ __forceinline__ void finish_value_head(const BackwardParams& p, int64_t block, int64_t b,
                                                  int64_t begin, int64_t end, int64_t owned,
                                                  int64_t hv, int thread,
                                                  float (&shared)[kFinishWarps]) {
  const Problem& problem = p.problem;
  const int64_t first_row = b * problem.num_tokens * problem.heads_v + hv;
  const int64_t slab_rows = p.rows * problem.heads_v;
  const bool single = p.gate_dim == 1;
  const int channel = single ? 0 : thread;
  gradient::GateGradient sum{0.0f, 0.0f};
  if (p.dg != nullptr && channel < p.gate_dim) {
    const float factor = gate_factor(problem, p.args, hv);
    const float bias = gradient::bias_of(problem, p.args, hv, channel);
    const int64_t step = single ? kFinishWarps * 32 : 1;
    for (int64_t t = begin + (single ? thread : 0); t < end; t += step) {
      gradient::GateGradient got{0.0f, 0.0f};
      if (t < owned) {
        const int64_t row = first_row + t * problem.heads_v;
        float dlog = 0.0f;
        for (int64_t slab = 0; slab < p.slabs; ++slab)
          dlog += p.dg[(slab * slab_rows + row) * p.gate_dim + channel];
        const float x = load_element(problem.g.type, p.args.g, problem.g.at(b, t, hv, channel));
        got = gradient::gate_gradient<true>(problem, dlog, x + bias, factor);
      }
      sum.g += got.g, sum.A_log += got.A_log;
      if (problem.dg.present())
        store_element(problem.dg.type, p.args.dg, problem.dg.at(b, t, hv, channel), got.g);
    }
  }
  if (problem.dbeta.present() && begin + thread < end) {
    const int64_t t = begin + thread;
    float dbeta = 0.0f;
    if (t < owned) {
      for (int64_t slab = 0; slab < p.slabs; ++slab)
        dbeta += p.dbeta[slab * slab_rows + first_row + t * problem.heads_v];
      dbeta *= gradient::load_beta(problem, p.args, b, t, hv).by_logit;
    }
    store_element(problem.dbeta.type, p.args.dbeta, problem.dbeta.at(b, t, hv), dbeta);
  }
  if (problem.dv.present())
    for (int64_t t = begin > owned ? begin : owned; t < end; ++t)
      if (thread < problem.dim_v)
        store_element(problem.dv.type, p.args.dv, problem.dv.at(b, t, hv, thread), 0.0f);
  if (p.gate_sums == nullptr) return;
  float* to = p.gate_sums + (block * problem.heads_v + hv) * (p.gate_dim + 1);
  if (single) sum.g = cta_sum(sum.g, thread, shared);
  sum.A_log = cta_sum(sum.A_log, thread, shared);
  if (thread < p.gate_dim) to[thread] = sum.g;
  if (thread == 0) to[p.gate_dim] = sum.A_log;
}

}  // namespace backward

// grid: blocks of kFinishTokens tokens of a batch * H. A warp takes every eighth row of q and k.
template <int kUnused>
__global__ void __launch_bounds__(backward::kFinishWarps * 32)
    backward_finish_portable(const __grid_constant__ BackwardParams p) {
  using namespace backward;
  __shared__ float shared[kFinishWarps];
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t blocks = (problem.num_tokens + kFinishTokens - 1) / kFinishTokens;
  const int64_t h = blockIdx.x % problem.heads_qk, block = blockIdx.x / problem.heads_qk;
  const int64_t b = block / blocks, begin = block % blocks * kFinishTokens;
  const int64_t end =
      begin + kFinishTokens < problem.num_tokens ? begin + kFinishTokens : problem.num_tokens;
  const int64_t owned = problem.varlen()
                            ? bounded_range(problem, p.args, problem.num_sequences - 1).end
                            : problem.num_tokens;
  for (int64_t t = begin + warp; t < end; t += kFinishWarps) {
    if (problem.dq.present())
      finish_row(p, problem.q, p.args.q, problem.dq, p.args.dq, p.dq, b, t, h, t < owned, lane);
    if (problem.dk.present())
      finish_row(p, problem.k, p.args.k, problem.dk, p.args.dk, p.dk, b, t, h, t < owned, lane);
  }

  for (int64_t m = 0; m < problem.group(); ++m)
    finish_value_head(p, block, b, begin, end, owned, h * problem.group() + m, thread, shared);
}

// dt_bias's and A_log's gradients from the sums of all blocks. grid: HV * columns of 32; a warp
// adds every eighth block.
template <int kUnused>
__global__ void __launch_bounds__(backward::kFinishWarps * 32)
    backward_gate_sums_portable(const __grid_constant__ BackwardParams p) {
  __shared__ float sums[backward::kFinishWarps][32];
  const Problem& problem = p.problem;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int width = p.gate_dim + 1, groups = (width + 31) / 32;
  const int64_t hv = blockIdx.x / groups;
  const int column = static_cast<int>(blockIdx.x % groups) * 32 + lane;
  float sum = 0.0f;
  if (column < width)
    for (int64_t block = warp; block < p.gate_blocks; block += backward::kFinishWarps)
      sum += p.gate_sums[(block * problem.heads_v + hv) * width + column];
  sums[warp][lane] = sum;
  ptx::sync_cta();
  if (warp != 0 || column >= width) return;
  sum = 0.0f;
  for (int w = 0; w < backward::kFinishWarps; ++w) sum += sums[w][lane];
  if (column == p.gate_dim) {
    if (problem.dA_log.present())
      store_element(problem.dA_log.type, p.args.dA_log, hv * problem.dA_log.h, sum);
  } else if (problem.ddt_bias.present()) {
    store_element(problem.ddt_bias.type, p.args.ddt_bias,
                  hv * problem.ddt_bias.h + column * problem.ddt_bias.k, sum);
  }
}

}  // namespace linattn::cuda
