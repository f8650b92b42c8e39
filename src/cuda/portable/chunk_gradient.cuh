// Gradients of one chunk of one value head, from the state before it, the gradient of the state
// after it, and what the scans left of its tokens. Nothing here depends on another chunk.
//   X = dO S^T   Y = -dV S^T   Z = R dS^T   [dP; dA] = tril([dO; -dV] R^T)   dbeta = diag(dR E^T)
// where dV = B dR and R = B E, so that beta is never divided by. Rows of q and k are as the caller
// has them: their norms are numbers on X, Y, Z, dP and dA.
#pragma once

#include "cuda/portable/chunk_gradient.params.h"
#include "cuda/portable/chunk_gradient_prepare.cuh"
#include "cuda/portable/gradient.cuh"

namespace linattn::cuda {
namespace chunk::gradients {

inline constexpr int kPairRow = kChunk + 1;  // floats a row of dP and dA

// CTAs an SM that the registers must allow. On sm_90, where two fit the shared memory, 128
// registers suffice; other compilers spill a few bytes there, and choose for themselves.
template <int kDim>
LINATTN_HOST_DEVICE constexpr int gradient_ctas() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  return kDim <= 128 ? 2 : 1;
#else
  return 1;
#endif
}

// A slab of kSlabRows value rows: both states, dO, E or V, and of the delta update dR, each with
// low parts.
template <int kDim>
struct Slab {
  static constexpr int kState = kSlabRows * kDim * 2, kColumns = kChunk * kSlabRows * 2;
  static constexpr int kStateGradient = kState, kOutput = 2 * kState;
  static constexpr int kError = kOutput + kColumns, kErrorGradient = kError + 2 * kColumns;
  static constexpr int kBytes = kErrorGradient + 2 * kColumns;
};

template <int kDim>
struct GradientShared {
  // [3][32 rows][kDim] of fp32, later the products between halves; first the slabs in flight.
  // Behind the rows, low parts of dp_square and da_square.
  static constexpr int kWorkRow = kDim + 4, kSquare = kChunk * kChunk * 2;
  static constexpr int kRows = 3 * kChunk * kWorkRow * 4;
  static constexpr int kWork = kRows + 2 * kSquare, kSlabs = 2 * Slab<kDim>::kBytes;
  alignas(16) char work[kWork > kSlabs ? kWork : kSlabs];
  float dp[kChunk][kPairRow], da[kChunk][kPairRow];
  alignas(16) char dp_square[kSquare];
  alignas(16) char da_square[kSquare];
  float through[kDim];  // rowsum of S dS
  float beta[kChunk], norm_q[kChunk], norm_k[kChunk], log_decay[kChunk];
  float dbeta[kChunk];
  Place place;    // read where it is needed: in registers it would crowd out the rows
  int64_t index;  // chunk slot * HV + value head

  __device__ float* row(int array, int row) {
    return reinterpret_cast<float*>(work) + (array * kChunk + row) * kWorkRow;
  }
  __device__ char* dp_square_low() { return work + kRows; }
  __device__ char* da_square_low() { return work + kRows + kSquare; }
};

// 16 tokens from 16 * i by 16 value columns from 16 * kk, as A operand from rows of tokens ...
__device__ __forceinline__ void load_a_64(uint32_t (&a)[4], uint32_t tile, int i, int kk,
                                          int lane) {
  const int m = lane / 8;
  ptx::ldmatrix_x4(a, tile + swizzled_square(i * 16 + (m & 1) * 8 + lane % 8, kk * 2 + (m >> 1)));
}
// ... or from rows of value columns, and as B operand of two n-tiles of tokens from either.
__device__ __forceinline__ void load_a_64_trans(uint32_t (&a)[4], uint32_t tile, int i, int kk,
                                                int lane) {
  const int m = lane / 8;
  ptx::ldmatrix_x4_trans(
      a, tile + swizzled_square(kk * 16 + (m >> 1) * 8 + lane % 8, i * 2 + (m & 1)));
}
__device__ __forceinline__ void load_b_64(uint32_t (&b)[4], uint32_t tile, int i, int kk,
                                          int lane) {
  const int m = lane / 8;
  ptx::ldmatrix_x4(b, tile + swizzled_square(i * 16 + (m >> 1) * 8 + lane % 8, kk * 2 + (m & 1)));
}
__device__ __forceinline__ void load_b_64_trans(uint32_t (&b)[4], uint32_t tile, int i, int kk,
                                                int lane) {
  const int m = lane / 8;
  ptx::ldmatrix_x4_trans(
      b, tile + swizzled_square(kk * 16 + (m & 1) * 8 + lane % 8, i * 2 + (m >> 1)));
}

// 32 tokens by a slab's columns of a tensor shaped as v.
__device__ __forceinline__ void load_slab_columns(const ChunkParams& p, const TokenView& view,
                                                  const void* data, const Place& place, int v0,
                                                  bool vectors, char* tile, int thread,
                                                  int threads) {
  const auto* base =
      static_cast<const uint16_t*>(data) + view.at(place.batch, place.begin, place.hv, v0);
  const uint32_t to = ptx::shared_address(tile);
  const int columns = p.dim_v - v0;
  for (int i = thread; i < kChunk * 4; i += threads) {
    const int row = i / 4, unit = i % 4, at = swizzled_square(row, unit);
    const auto* from = base + row * view.t + unit * 8;
    if (vectors) {
      const bool exists = row < place.rows && unit * 8 < columns;
      ptx::copy_16_async(to + at, exists ? from : base, exists);
      continue;
    }
    auto* elements = reinterpret_cast<uint16_t*>(tile + at);
#pragma unroll
    for (int e = 0; e < 8; ++e)
      elements[e] = row < place.rows && unit * 8 + e < columns ? from[e] : 0;
  }
}

template <int kDim, bool kDelta>
__device__ __forceinline__ void load_slab(const ChunkGradientParams& g, const Place& place,
                                          int64_t index, int slab, char* to, int thread) {
  using S = Slab<kDim>;
  constexpr int kThreads = gradient_threads(kDim), kUnits = kDim / 8;
  const ChunkParams& p = g.chunk;
  const int64_t row0 = index * g.value_rows + slab * kSlabRows;
  const uint32_t address = ptx::shared_address(to);
#pragma unroll
  for (int i = thread; i < kSlabRows * kUnits; i += kThreads) {
    const int at = swizzled<kDim>(i / kUnits, i % kUnits);
    const int64_t from = row0 * kDim * 2 + i * 16;
    ptx::copy_16_async(address + at, g.states + from);
    ptx::copy_16_async(address + S::kStateGradient + at, g.state_gradients + from);
  }
  if constexpr (kDelta) {
    for (int i = thread; i < 2 * kSlabRows * 4; i += kThreads) {
      const int low = i / (kSlabRows * 4), unit = i % (kSlabRows * 4);
      const int at = low * S::kColumns + swizzled_square(unit / 4, unit % 4);
      const int64_t row = (2 * index + low) * g.value_rows + slab * kSlabRows;
      const int64_t from = row * kChunk * 2 + unit * 16;
      ptx::copy_16_async(address + S::kErrorGradient + at, g.error_gradients + from);
      ptx::copy_16_async(address + S::kError + at, g.errors + from);
    }
  } else {
    load_slab_columns(p, p.problem.v, p.args.v, place, slab * kSlabRows, p.v_vectors,
                      to + S::kError, thread, kThreads);
  }
  load_slab_columns(p, p.problem.do_, p.args.do_, place, slab * kSlabRows, g.do_vectors,
                    to + S::kOutput, thread, kThreads);
}

// A warp's part of the products: 16 channels' places of X, Y, Z for all tokens, and blocks of 16 by
// 16 tokens of dP and dA.
template <int kDim, bool kDelta>
struct Products {
  static constexpr int kWarps = kDim / 16, kTasks = kDelta ? 8 : 4;
  static constexpr int kOwnTasks = kTasks > kWarps ? kTasks / kWarps : 1;
  float x[2][2][4] = {}, y[kDelta ? 2 : 1][2][4] = {}, z[2][2][4] = {};
  float through[2][4] = {};
  float pairs[kOwnTasks][2][4] = {};
};

template <int kDim, bool kDelta>
__device__ __forceinline__ void multiply_slab(Products<kDim, kDelta>& products, uint32_t slab,
                                              int warp, int lane) {
  using S = Slab<kDim>;
  using All = Products<kDim, kDelta>;
#pragma unroll
  for (int kk = 0; kk < kSlabRows / 16; ++kk) {
    uint32_t s[4], ds[4];
    load_b_trans<kDim>(s, slab, kk * 16, warp, lane);
    load_b_trans<kDim>(ds, slab + S::kStateGradient, kk * 16, warp, lane);
    const auto multiply = [](float (&x)[2][4], const uint32_t (&a)[4], const uint32_t (&b)[4]) {
      ptx::mma_m16n8k16<kBf16>(x[0], a, b[0], b[1]);
      ptx::mma_m16n8k16<kBf16>(x[1], a, b[2], b[3]);
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t a[4];
      load_a_64(a, slab + S::kOutput, i, kk, lane);
      multiply(products.x[i], a, s);
      if constexpr (kDelta) {
        // With low parts: over repeated keys the tokens' terms cancel.
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          load_a_64_trans(a, slab + S::kErrorGradient + part * S::kColumns, i, kk, lane);
          multiply(products.y[i], a, s);
          load_a_64_trans(a, slab + S::kError + part * S::kColumns, i, kk, lane);
          multiply(products.z[i], a, ds);
        }
      } else {
        load_a_64(a, slab + S::kError, i, kk, lane);
        multiply(products.z[i], a, ds);
      }
    }
    // S^T as A operand has the registers of S as B operand in another order.
    const uint32_t s_rows[4] = {s[0], s[2], s[1], s[3]};
    ptx::mma_m16n8k16<kBf16>(products.through[0], s_rows, ds[0], ds[1]);
    ptx::mma_m16n8k16<kBf16>(products.through[1], s_rows, ds[2], ds[3]);
#pragma unroll
    for (int own = 0; own < All::kOwnTasks; ++own) {
      const int task = warp + own * All::kWarps;
      if (task >= All::kTasks) continue;
      uint32_t a[4], b[4];
      float (&pairs)[2][4] = products.pairs[own];
      if constexpr (kDelta) {
        // All but the product of both low parts.
        const int i = task / 2 % 2, j = task % 2;
        if (task < 4)
          load_a_64(a, slab + S::kOutput, i, kk, lane);
        else
          load_a_64_trans(a, slab + S::kErrorGradient, i, kk, lane);
        load_b_64_trans(b, slab + S::kError + S::kColumns, j, kk, lane);
        multiply(pairs, a, b);
        load_b_64_trans(b, slab + S::kError, j, kk, lane);
        multiply(pairs, a, b);
        if (task < 4) continue;
        load_a_64_trans(a, slab + S::kErrorGradient + S::kColumns, i, kk, lane);
        multiply(pairs, a, b);
      } else {
        load_b_64(b, slab + S::kError, task % 2, kk, lane);
        load_a_64(a, slab + S::kOutput, task / 2, kk, lane);
        multiply(pairs, a, b);
      }
    }
  }
}

// Products to shared memory, in the order of tokens and channels, times scale, beta and norms.
template <int kDim, bool kDelta>
__device__ __forceinline__ void store_products(const Products<kDim, kDelta>& products, float scale,
                                               int warp, int lane, GradientShared<kDim>& s) {
  using All = Products<kDim, kDelta>;
  const int channel = warp / 2 * 32 + lane % 4 * 8 + warp % 2 * 4;
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int place = i * 16 + side * 8 + lane / 4, token = kDelta ? of_place(place) : place;
      const auto put = [&](int array, int row, const float (&x)[2][4], float factor) {
        *reinterpret_cast<float4*>(s.row(array, row) + channel) =
            make_float4(x[0][2 * side] * factor, x[0][2 * side + 1] * factor,
                        x[1][2 * side] * factor, x[1][2 * side + 1] * factor);
      };
      put(0, place, products.x[i], scale * s.norm_q[place]);
      const float beta_k = s.norm_k[token] * (kDelta ? s.beta[token] : 1.0f);
      if constexpr (kDelta) put(1, token, products.y[i], -beta_k);
      put(2, token, products.z[i], beta_k);
    }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile)
#pragma unroll
    for (int e = 0; e < 2; ++e)
      if (lane / 4 == lane % 4 * 2 + e)
        s.through[channel + tile * 2 + e] = products.through[tile][tile * 2 + e];
#pragma unroll
  for (int own = 0; own < All::kOwnTasks; ++own) {
    const int task = warp + own * All::kWarps;
    if (task >= All::kTasks) continue;
    const bool is_a = task >= 4;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int row = task / 2 % 2 * 16 + lane / 4 + e / 2 * 8;
        const int column = task % 2 * 16 + tile * 8 + lane % 4 * 2 + e % 2;
        const int i = is_a ? of_place(row) : row, j = kDelta ? of_place(column) : column;
        const float x = products.pairs[own][tile][e];
        const float keys = s.norm_k[j] * (kDelta ? s.beta[j] : 1.0f);
        if (!is_a) {
          s.dp[i][j] = j <= i ? scale * s.norm_q[i] * keys * x : 0.0f;
        } else {
          s.da[i][j] = j < i ? -s.beta[i] * s.norm_k[i] * keys * x : 0.0f;
          if (i == j) s.dbeta[i] = x;
        }
      }
  }
}

// kPer (2, 4, 8) neighbours of a lane, of which the first `valid` exist; `aligned` allows accesses
// of two or four.
template <int kPer>
__device__ __forceinline__ void load_lane(const float* from, float (&x)[kPer]) {
#pragma unroll
  for (int e = 0; e < kPer; e += 2) {
    const float2 two = *reinterpret_cast<const float2*>(from + e);
    x[e] = two.x, x[e + 1] = two.y;
  }
}

template <int kPer>
__device__ __forceinline__ void load_lane(Type type, const void* data, int64_t offset, int valid,
                                          bool aligned, float (&x)[kPer]) {
  constexpr int kCount = kPer < 4 ? kPer : 4;
#pragma unroll
  for (int e = 0; e < kPer; e += kCount) {
    float part[kCount];
    load_channels(type, data, offset + e, valid - e, aligned, part);
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[e + i] = part[i];
  }
}

template <int kPer>
__device__ __forceinline__ void store_lane(Type type, void* data, int64_t offset, int valid,
                                           bool aligned, const float (&x)[kPer]) {
  constexpr int kCount = kPer < 4 ? kPer : 4;
  if (!aligned || valid < kPer) {
#pragma unroll 1
    for (int e = 0; e < kPer && e < valid; ++e) {
      float one = x[0];
#pragma unroll
      for (int i = 1; i < kPer; ++i) one = e == i ? x[i] : one;
      store_element(type, data, offset + e, one);
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < kPer; e += kCount) {
    if (type == Type::f32) {
      auto* to = static_cast<float*>(data) + offset + e;
#pragma unroll
      for (int i = 0; i < kCount; i += 2)
        *reinterpret_cast<float2*>(to + i) = make_float2(x[e + i], x[e + i + 1]);
      continue;
    }
    uint32_t pairs[kCount / 2];
#pragma unroll
    for (int i = 0; i < kCount; i += 2)
      pairs[i / 2] = type == Type::bf16 ? ptx::pack_bf16(x[e + i], x[e + i + 1])
                                        : ptx::pack_f16(x[e + i], x[e + i + 1]);
    auto* to = static_cast<uint16_t*>(data) + offset + e;
    if constexpr (kCount == 4)
      *reinterpret_cast<uint2*>(to) = make_uint2(pairs[0], pairs[1]);
    else
      *reinterpret_cast<uint32_t*>(to) = pairs[0];
  }
}

// Finds the chunk of value head `member` of the CTA's group, between barriers; false where there is
// none, whose sums are zero.
template <int kDim>
__device__ __forceinline__ bool enter_place(const ChunkGradientParams& g, int member,
                                            GradientShared<kDim>& s, int thread) {
  const uint32_t slot = divide(blockIdx.x, g.heads_qk);
  const int64_t h = blockIdx.x - slot * g.heads_qk.divisor;
  const int64_t hv = h * g.chunk.group.divisor + member;
  const int64_t index = int64_t{slot} * g.chunk.heads_v.divisor + hv;
  const Place place = find_place(g.chunk, slot, hv);
  if (place.rows == 0) {
    if (g.gate_sums != nullptr)
      for (int i = thread; i <= g.gate_dim; i += gradient_threads(kDim))
        g.gate_sums[index * (g.gate_dim + 1) + i] = 0.0f;
    return false;
  }
  ptx::sync_cta();
  if (thread == 0) s.place = place, s.index = index;
  ptx::sync_cta();
  return true;
}

// The products of a chunk, from tokens() of its record on; ends with a barrier.
template <int kDim, bool kDelta>
__device__ __forceinline__ void multiply_chunk(const ChunkGradientParams& g,
                                               const GradientRecord& layout,
                                               GradientShared<kDim>& s, int thread) {
  const ChunkParams& p = g.chunk;
  const Place& place = s.place;
  const int64_t index = s.index;
  const int lane = thread % 32, warp = thread / 32;
  const auto* tokens =
      reinterpret_cast<const float*>(p.records + index * p.record_bytes + layout.tokens());
  if (thread < kChunk) {
    s.beta[thread] = kDelta ? tokens[thread] : 1.0f;
    s.norm_q[thread] = tokens[kChunk + thread];
    s.norm_k[thread] = tokens[2 * kChunk + thread];
    s.log_decay[thread] = layout.channel ? 0.0f : tokens[3 * kChunk + thread];
  }
  const int slabs = g.value_rows / kSlabRows;
  const auto slab_of = [&](int slab) { return s.work + slab % 2 * Slab<kDim>::kBytes; };
  Products<kDim, kDelta> products;
#pragma unroll 1
  for (int slab = 0; slab <= slabs; ++slab) {
    if (slab < slabs) load_slab<kDim, kDelta>(g, place, index, slab, slab_of(slab), thread);
    ptx::commit_copies();
    if (slab == 0) continue;
    ptx::wait_copies<1>();
    ptx::sync_cta();
    multiply_slab<kDim, kDelta>(products, ptx::shared_address(slab_of(slab - 1)), warp, lane);
    ptx::sync_cta();
  }
  store_products<kDim, kDelta>(products, p.scale, warp, lane, s);
  ptx::sync_cta();
  if (kDelta && p.problem.dbeta.present() && thread < place.rows) {
    const int64_t t = place.begin + thread;
    const float by_logit =
        gradient::load_beta(p.problem, p.args, place.batch, t, place.hv).by_logit;
    store_element(p.problem.dbeta.type, p.args.dbeta, p.problem.dbeta.at(place.batch, t, place.hv),
                  s.dbeta[thread] * by_logit);
  }
}

// Gradients of q and k from rows of shared memory: sums over the group's value heads, the norm's
// chain rule, and to memory. A warp takes every kDim / 16th row, the same ones for each value head,
// so that it reads back what it wrote itself.
template <int kDim>
__device__ __forceinline__ void finish_rows(const ChunkGradientParams& g, int member,
                                            GradientShared<kDim>& s, int warp, int lane) {
  constexpr int kPer = kDim / 32;
  const ChunkParams& p = g.chunk;
  const Problem& problem = p.problem;
  const bool last = member + 1 == static_cast<int>(p.group.divisor);
  const int channel = lane * kPer, valid = p.dim_k - channel;
#pragma unroll 1
  for (int i = warp; i < 2 * kChunk; i += kDim / 16) {
    const int row = i % kChunk;
    const bool of_k = i >= kChunk;
    const TokenView& out = of_k ? problem.dk : problem.dq;
    if (row >= s.place.rows || !out.present()) continue;
    float y[kPer];
    load_lane<kPer>(s.row(of_k, row) + channel, y);
    if (g.row_sums != nullptr) {
      float* sums = g.row_sums + (int64_t{blockIdx.x} * 2 * kChunk + i) * kDim + channel;
      if (member > 0) {
        float before[kPer];
        load_lane<kPer>(sums, before);
#pragma unroll
        for (int e = 0; e < kPer; ++e) y[e] += before[e];
      }
      if (!last) {
        store_lane<kPer>(Type::f32, sums, 0, kPer, true, y);
        continue;
      }
    }
    const int64_t t = s.place.begin + row;
    if (problem.qk_norm) {
      const TokenView& view = of_k ? problem.k : problem.q;
      const void* data = of_k ? p.args.k : p.args.q;
      float x[kPer], along = 0.0f;
      load_lane<kPer>(view.type, data, view.at(s.place.batch, t, s.place.h, channel), valid,
                      p.vectors, x);
#pragma unroll
      for (int e = 0; e < kPer; ++e) along = fmaf(x[e], y[e], along);
      const float norm = of_k ? s.norm_k[row] : s.norm_q[row];
      along = -gradient::warp_sum(along) * norm * norm;
#pragma unroll
      for (int e = 0; e < kPer; ++e) y[e] = fmaf(along, x[e], y[e]);
    }
    store_lane<kPer>(out.type, of_k ? p.args.dk : p.args.dq,
                     out.at(s.place.batch, t, s.place.h, channel), valid,
                     of_k ? g.dk_vectors : g.dq_vectors, y);
  }
}

}  // namespace chunk::gradients
}  // namespace linattn::cuda
