// Backward, token by token, in fp32 on CUDA cores: right for every problem, not fast. A CTA takes a
// sequence, a value head and a slab of V; a warp owns a few columns of both the state and its
// gradient, and a lane some key channels of them. The state is never run backwards, which a decay
// of zero forbids: a sweep forward leaves checkpoints, and each segment between two of them is
// swept again for the states before each token.
#pragma once

#include "cuda/portable/backward.params.h"
#include "cuda/portable/gradient.cuh"

namespace linattn::cuda {
namespace backward {

using gradient::warp_sum;

// A warp's columns times a lane's channels.
template <int kPer>
using Tile = float[token_columns(kPer)][kPer];

struct Task {
  int64_t n, hv, h, slab;
  TokenRange range;
  int v0, columns;  // of the warp; those past V do not exist
  int channel, channels;
};

template <int kPer>
__device__ __forceinline__ Task task_of(const BackwardParams& p, int64_t index, int warp,
                                        int lane) {
  const Problem& problem = p.problem;
  Task task;
  task.slab = index % p.slabs;
  task.hv = index / p.slabs % problem.heads_v;
  task.n = index / p.slabs / problem.heads_v;
  task.h = task.hv / problem.group();
  task.range = bounded_range(problem, p.args, task.n);
  const auto left = [](int64_t size, int first, int most) {
    return static_cast<int>(size < first ? 0 : size - first < most ? size - first : most);
  };
  task.v0 = static_cast<int>(task.slab) * token_slab(kPer) + warp * token_columns(kPer);
  task.columns = left(problem.dim_v, task.v0, token_columns(kPer));
  task.channel = lane * kPer;
  task.channels = left(problem.dim_k, task.channel, kPer);
  return task;
}

// One token: all channels of the lane, all columns of the warp in every lane. What does not exist
// is zero, and decays by 1.
template <int kPer>
struct Token {
  float q[kPer], k[kPer], decay[kPer];
  float v[token_columns(kPer)], d_o[token_columns(kPer)];
  float beta;
};

template <int kPer>
__device__ __forceinline__ void load_row(const Problem& p, const TokenView& view, const void* data,
                                         const Task& task, int64_t t, float (&x)[kPer]) {
  float squares = 0.0f;
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    x[e] = e < task.channels ? load_element(view.type, data,
                                            view.at(task.range.batch, t, task.h, task.channel + e))
                             : 0.0f;
    squares = fmaf(x[e], x[e], squares);
  }
  if (!p.qk_norm) return;
  const float scale = gradient::inverse_norm(warp_sum(squares));
#pragma unroll
  for (int e = 0; e < kPer; ++e) x[e] *= scale;
}

template <int kPer>
__device__ __forceinline__ void load_columns(const TokenView& view, const void* data,
                                             const Task& task, int64_t t, int lane,
                                             float (&x)[token_columns(kPer)]) {
  const float mine =
      lane < task.columns
          ? load_element(view.type, data, view.at(task.range.batch, t, task.hv, task.v0 + lane))
          : 0.0f;
#pragma unroll
  for (int j = 0; j < token_columns(kPer); ++j) x[j] = ptx::shuffle(mine, j);
}

template <int kPer, bool kGradient>
__device__ __forceinline__ void load_token(const BackwardParams& p, const Task& task, int64_t t,
                                           int lane, Token<kPer>& x) {
  const Problem& problem = p.problem;
  load_row<kPer>(problem, problem.k, p.args.k, task, t, x.k);
  load_columns<kPer>(problem.v, p.args.v, task, t, lane, x.v);
  if (kGradient) {
    load_row<kPer>(problem, problem.q, p.args.q, task, t, x.q);
    load_columns<kPer>(problem.do_, p.args.do_, task, t, lane, x.d_o);
  }
  x.beta = gradient::load_beta(problem, p.args, task.range.batch, t, task.hv).value;
  const bool gated = problem.gate == Gate::head || problem.gate == Gate::channel;
  const float factor = gate_factor(problem, p.args, task.hv);
  float decay = 1.0f;
  if (problem.gate == Gate::head_constant)
    decay = expf(static_cast<const float*>(p.args.g_gamma)[task.hv * problem.g_gamma.h]);
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    if (gated && (e == 0 || problem.gate == Gate::channel) && task.channels > e) {
      const int channel = problem.gate == Gate::channel ? task.channel + e : 0;
      const float g = load_element(problem.g.type, p.args.g,
                                   problem.g.at(task.range.batch, t, task.hv, channel));
      decay = gradient::decay_of(problem, g + gradient::bias_of(problem, p.args, task.hv, channel),
                                 factor);
    }
    x.decay[e] = e < task.channels ? decay : 1.0f;
  }
}

// y_j = sum over all channels of x_ij w_i, in every lane.
template <int kPer>
__device__ __forceinline__ void reduce_channels(const Tile<kPer>& x, const float (&w)[kPer],
                                                int lane, float (&y)[token_columns(kPer)]) {
  constexpr int kColumns = token_columns(kPer);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    y[j] = 0.0f;
#pragma unroll
    for (int e = 0; e < kPer; ++e) y[j] = fmaf(x[j][e], w[e], y[j]);
  }
  // A lane keeps the columns whose index shares its low bits, so each step halves the work.
#pragma unroll
  for (int width = kColumns / 2; width >= 1; width /= 2) {
    const bool upper = (lane & width) != 0;
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) {
      if (j >= width) continue;
      const float send = upper ? y[j] : y[j + width];
      const float keep = upper ? y[j + width] : y[j];
      y[j] = keep + ptx::shuffle_xor(send, width);
    }
  }
  float sum = y[0];
#pragma unroll
  for (int bit = kColumns; bit < 32; bit *= 2) sum += ptx::shuffle_xor(sum, bit);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) y[j] = ptx::shuffle(sum, j);
}

// s: the decayed state. error = v - s^T k, u = what the update writes.
template <int kPer>
__device__ __forceinline__ void solve(const Problem& p, const Token<kPer>& x, const Tile<kPer>& s,
                                      int lane, float (&error)[token_columns(kPer)],
                                      float (&u)[token_columns(kPer)]) {
  if (p.update == Update::delta) reduce_channels<kPer>(s, x.k, lane, error);
#pragma unroll
  for (int j = 0; j < token_columns(kPer); ++j) {
    error[j] = p.update == Update::delta ? x.v[j] - error[j] : x.v[j];
    u[j] = p.update == Update::delta ? x.beta * error[j] : x.v[j];
  }
}

template <int kPer>
__device__ __forceinline__ float* slot_of(const BackwardParams& p, int64_t worker, int64_t slot,
                                          int warp, int lane) {
  constexpr int64_t kState = int64_t{kTokenWarps} * token_columns(kPer) * 32 * kPer;
  return p.states + (worker * (p.checkpoints + p.segment) + slot) * kState +
         (warp * token_columns(kPer) * 32 + lane) * kPer;
}

template <int kPer>
__device__ __forceinline__ void save(const Tile<kPer>& s, float* to) {
#pragma unroll
  for (int j = 0; j < token_columns(kPer); ++j)
#pragma unroll
    for (int e = 0; e < kPer; e += 4)
      *reinterpret_cast<float4*>(to + j * 32 * kPer + e) =
          make_float4(s[j][e], s[j][e + 1], s[j][e + 2], s[j][e + 3]);
}

template <int kPer>
__device__ __forceinline__ void restore(Tile<kPer>& s, const float* from) {
#pragma unroll
  for (int j = 0; j < token_columns(kPer); ++j)
#pragma unroll
    for (int e = 0; e < kPer; e += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + j * 32 * kPer + e);
      s[j][e] = four.x, s[j][e + 1] = four.y, s[j][e + 2] = four.z, s[j][e + 3] = four.w;
    }
}

template <int kPer>
__device__ __forceinline__ void load_state(const StateView& view, const void* data,
                                           const Task& task, Tile<kPer>& s) {
#pragma unroll
  for (int j = 0; j < token_columns(kPer); ++j)
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      s[j][e] = view.present() && j < task.columns && e < task.channels
                    ? load_element(view.type, data,
                                   view.at(task.n, task.hv, task.channel + e, task.v0 + j))
                    : 0.0f;
}

template <int kPer>
__device__ __forceinline__ void store_state(const StateView& view, void* data, const Task& task,
                                            const Tile<kPer>& s) {
#pragma unroll
  for (int j = 0; j < token_columns(kPer); ++j)
#pragma unroll
    for (int e = 0; e < kPer; ++e)
      if (j < task.columns && e < task.channels)
        store_element(view.type, data, view.at(task.n, task.hv, task.channel + e, task.v0 + j),
                      s[j][e]);
}

// Tokens [begin, end): `save_decayed` leaves the decayed state of each in the segment's slots.
template <int kPer>
__device__ __forceinline__ void sweep(const BackwardParams& p, const Task& task, int64_t worker,
                                      int64_t begin, int64_t end, bool save_decayed, int warp,
                                      int lane, Tile<kPer>& s) {
  for (int64_t t = begin; t < end; ++t) {
    Token<kPer> x;
    load_token<kPer, false>(p, task, task.range.begin + t, lane, x);
#pragma unroll
    for (int j = 0; j < token_columns(kPer); ++j)
#pragma unroll
      for (int e = 0; e < kPer; ++e) s[j][e] *= x.decay[e];
    if (save_decayed)
      save<kPer>(s, slot_of<kPer>(p, worker, p.checkpoints + t - begin, warp, lane));
    float error[token_columns(kPer)], u[token_columns(kPer)];
    solve<kPer>(p.problem, x, s, lane, error, u);
#pragma unroll
    for (int j = 0; j < token_columns(kPer); ++j)
#pragma unroll
      for (int e = 0; e < kPer; ++e) s[j][e] = fmaf(x.k[e], u[j], s[j][e]);
  }
}

template <int kPer>
struct Shared {
  float rows[kTokenWarps][3][32 * kPer];  // dq, dk, dg of each warp's columns
  float scalars[kTokenWarps][2];          // dbeta, and dg of a head gate
};

// s: the decayed state of token t; ds: gradient of the state after it, becomes that of the state
// before it.
template <int kPer>
__device__ __forceinline__ void step_back(const BackwardParams& p, const Task& task, int64_t t,
                                          int warp, int lane, const Tile<kPer>& s, Tile<kPer>& ds,
                                          Shared<kPer>& shared) {
  constexpr int kColumns = token_columns(kPer);
  const Problem& problem = p.problem;
  const bool delta = problem.update == Update::delta;
  Token<kPer> x;
  load_token<kPer, true>(p, task, t, lane, x);
  float error[kColumns], u[kColumns], du[kColumns];
  solve<kPer>(problem, x, s, lane, error, u);
  float u_do = 0.0f, dq[kPer], dk[kPer], dlog[kPer];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    x.d_o[j] *= p.scale;
    u_do = fmaf(u[j], x.d_o[j], u_do);
  }
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    dq[e] = x.k[e] * u_do, dk[e] = dlog[e] = 0.0f;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      dq[e] = fmaf(s[j][e], x.d_o[j], dq[e]);  // o = scale (s + k u^T)^T q
      ds[j][e] = fmaf(x.q[e], x.d_o[j], ds[j][e]);
      dk[e] = fmaf(ds[j][e], u[j], dk[e]);  // the state is s + k u^T
    }
  }
  reduce_channels<kPer>(ds, x.k, lane, du);
  float dbeta = 0.0f;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    dbeta = fmaf(du[j], error[j], dbeta);  // u = beta error
    if (delta) du[j] *= x.beta;            // now of error = v - s^T k, so of v
  }
  if (problem.dv.present()) {
    float mine = 0.0f;
#pragma unroll
    for (int j = 0; j < kColumns; ++j) mine = lane == j ? du[j] : mine;
    if (lane < task.columns)
      store_element(problem.dv.type, p.args.dv,
                    problem.dv.at(task.range.batch, t, task.hv, task.v0 + lane), mine);
  }
#pragma unroll
  for (int e = 0; e < kPer; ++e)
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (delta) {
        dk[e] = fmaf(-s[j][e], du[j], dk[e]);
        ds[j][e] = fmaf(-x.k[e], du[j], ds[j][e]);
      }
      dlog[e] = fmaf(ds[j][e], s[j][e], dlog[e]);  // s = exp(g) times the state before
      ds[j][e] *= x.decay[e];
    }

  float dlog_sum = 0.0f;
#pragma unroll
  for (int e = 0; e < kPer; ++e) {
    float (&rows)[3][32 * kPer] = shared.rows[warp];
    rows[0][task.channel + e] = dq[e];
    rows[1][task.channel + e] = dk[e];
    rows[2][task.channel + e] = dlog[e];
    dlog_sum += dlog[e];
  }
  if (p.dg != nullptr && p.gate_dim == 1) dlog_sum = warp_sum(dlog_sum);
  if (lane == 0) shared.scalars[warp][0] = dbeta, shared.scalars[warp][1] = dlog_sum;
  ptx::sync_cta();
  const int64_t row =
      ((task.slab * problem.batch + task.range.batch) * problem.num_tokens + t) * problem.heads_v +
      task.hv;
  float* const outputs[3] = {p.dq, p.dk, p.gate_dim > 1 ? p.dg : nullptr};
  const int thread = warp * 32 + lane;
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    if (outputs[i] == nullptr || thread >= problem.dim_k) continue;
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kTokenWarps; ++w) sum += shared.rows[w][i][thread];
    outputs[i][row * problem.dim_k + thread] = sum;
  }
  if (thread < 2) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kTokenWarps; ++w) sum += shared.scalars[w][thread];
    if (thread == 0 && p.dbeta != nullptr) p.dbeta[row] = sum;
    // One key channel has the layout of a head gate.
    if (thread == 1 && p.dg != nullptr && p.gate_dim == 1) p.dg[row] = sum;
  }
  ptx::sync_cta();
}

}  // namespace backward

// grid: workers, each with room for the states of one task at a time; block: kTokenWarps warps.
template <int kPer>
__global__ void __launch_bounds__(kTokenWarps * 32)
    backward_token_portable(const __grid_constant__ BackwardParams p) {
  __shared__ backward::Shared<kPer> shared;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int64_t worker = blockIdx.x;
#pragma unroll 1
  for (int64_t index = worker; index < p.tasks; index += p.workers) {
    const backward::Task task = backward::task_of<kPer>(p, index, warp, lane);
    const int64_t length = task.range.length();
    backward::Tile<kPer> s, ds;
    backward::load_state<kPer>(p.problem.initial_state, p.args.initial_state, task, s);
    for (int64_t begin = 0; begin < length; begin += p.segment) {
      backward::save<kPer>(s, backward::slot_of<kPer>(p, worker, begin / p.segment, warp, lane));
      if (begin + p.segment < length)
        backward::sweep<kPer>(p, task, worker, begin, begin + p.segment, false, warp, lane, s);
    }
    backward::load_state<kPer>(p.problem.dht, p.args.dht, task, ds);
    for (int64_t end = length; end > 0;) {
      const int64_t begin = (end - 1) / p.segment * p.segment;
      backward::restore<kPer>(s, backward::slot_of<kPer>(p, worker, begin / p.segment, warp, lane));
      backward::sweep<kPer>(p, task, worker, begin, end, true, warp, lane, s);
      for (int64_t t = end - 1; t >= begin; --t) {
        backward::restore<kPer>(
            s, backward::slot_of<kPer>(p, worker, p.checkpoints + t - begin, warp, lane));
        backward::step_back<kPer>(p, task, task.range.begin + t, warp, lane, s, ds, shared);
      }
      end = begin;
    }
    if (p.problem.dh0.present()) backward::store_state<kPer>(p.problem.dh0, p.args.dh0, task, ds);
  }
}

}  // namespace linattn::cuda
