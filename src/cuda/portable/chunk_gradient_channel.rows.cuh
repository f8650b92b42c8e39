// What the gradients of a chunk with a gate per key channel read: two channels of a sub-block's
// rows and their decays, and the operands made of them.
#pragma once

#include "cuda/portable/chunk_gradient.cuh"

namespace linattn::cuda::chunk::gradients {

// A lane has two channels of a sub-block's rows.
template <int kDim>
struct ChannelGradientShared : GradientShared<kDim> {
  // As in preparation, but of rows as the caller has them: rows 16.. from row 16's start, keys ..15
  // to row 15's end, and of each block of 16 its upper 8 rows of q and k and lower 8 keys.
  alignas(16) char q16[kBlock * kDim * 2];
  alignas(16) char k16[kBlock * kDim * 2];
  alignas(16) char end16[kBlock * kDim * 2];
  alignas(16) char rows8[2][kBlock * kDim * 2];
  alignas(16) char end8[2][kSub * kDim * 2];
  float total[4][kDim];  // decay of each sub-block
  // What the gradients of rows reached from the chunk's start (but the first sub-block's), and of
  // keys that reach its end (but the last's), sum up to in a sub-block; of the last from the second
  // half's start, and of the first to the first half's end.
  float entering[3][kDim], leaving[3][kDim], entering16[kDim], leaving16[kDim];
  float factor[kDim / 16];

  // The operands' places before and after they are there: [32 rows][kDim] of fp32, and [8][threads]
  // words more.
  __device__ float* scratch() { return reinterpret_cast<float*>(q16); }
  __device__ uint32_t* spare() { return reinterpret_cast<uint32_t*>(q16) + kChunk * kDim; }
};
// Rows of 16-bit numbers: operands against scratch and spare.
static_assert((5 * kBlock + 2 * kSub) * 64 * 2 == (kChunk * 64 + kSub * gradient_threads(64)) * 4);

__device__ __forceinline__ float half_of(uint32_t pair, int e) {
  float low, high;
  unpack<kBf16>(pair, low, high);
  return e == 0 ? low : high;
}

// Two channels of a sub-block's rows: q and k as the caller's pairs, decays, and the gradients.
struct SubBlock {
  uint32_t q[kSub], k[kSub];
  float d[kSub][2], dq[kSub][2], dk[kSub][2], dlog[kSub][2];
};

// One element, out of line: where rows cannot be read in pairs, speed is no matter, but the size of
// the code is.
inline __device__ __noinline__ float load_one(Type type, const void* data, int64_t offset) {
  return load_element(type, data, offset);
}

// A sub-block's rows of q or k, two channels. `spare` is room for kSub words of this lane's own,
// one every `stride`.
__device__ __forceinline__ void load_pairs(const TokenView& view, const void* data,
                                           const ChunkParams& p, const Place& place, int sub,
                                           int channel, bool aligned, uint32_t* spare, int stride,
                                           uint32_t (&x)[kSub]) {
  const int valid = p.dim_k - channel, rows = place.rows - sub * kSub;
  const int64_t at = view.at(place.batch, place.begin + sub * kSub, place.h, channel);
  if (aligned && p.dim_k % 2 == 0) {
    const auto* from = static_cast<const uint16_t*>(data) + at;
#pragma unroll
    for (int r = 0; r < kSub; ++r, from += view.t)
      x[r] = r < rows && valid > 0 ? *reinterpret_cast<const uint32_t*>(from) : 0u;
    return;
  }
#pragma unroll 1
  for (int r = 0; r < kSub; ++r)
    spare[r * stride] =
        pack<kBf16>(r < rows && valid > 0 ? load_one(view.type, data, at + r * view.t) : 0.0f,
                    r < rows && valid > 1 ? load_one(view.type, data, at + r * view.t + 1) : 0.0f);
#pragma unroll
  for (int r = 0; r < kSub; ++r) x[r] = spare[r * stride];
}

// Two channels of g, raw, to this lane's places of `rows`.
template <int kStride>
__device__ __forceinline__ void load_raw_gates(const ChunkParams& p, const Place& place, int sub,
                                               int channel, float* rows) {
  const TokenView& view = p.problem.g;
  const int valid = p.dim_k - channel, left = place.rows - sub * kSub;
  const int64_t at = view.at(place.batch, place.begin + sub * kSub, place.hv, channel);
  const auto put = [&](int r, float x0, float x1) {
    *reinterpret_cast<float2*>(rows + r * kStride) = make_float2(x0, x1);
  };
  if (!p.vectors || p.dim_k % 2 != 0) {
#pragma unroll 1
    for (int r = 0; r < kSub; ++r)
      put(r, r < left && valid > 0 ? load_one(view.type, p.args.g, at + r * view.t) : 0.0f,
          r < left && valid > 1 ? load_one(view.type, p.args.g, at + r * view.t + 1) : 0.0f);
  } else if (view.type == Type::f32) {
    const auto* from = static_cast<const float*>(p.args.g) + at;
#pragma unroll
    for (int r = 0; r < kSub; ++r, from += view.t) {
      const float2 x =
          r < left && valid > 0 ? *reinterpret_cast<const float2*>(from) : make_float2(0.0f, 0.0f);
      put(r, x.x, x.y);
    }
  } else {
    const auto* from = static_cast<const uint16_t*>(p.args.g) + at;
    uint32_t x[kSub];
#pragma unroll
    for (int r = 0; r < kSub; ++r, from += view.t)
      x[r] = r < left && valid > 0 ? *reinterpret_cast<const uint32_t*>(from) : 0u;
#pragma unroll
    for (int r = 0; r < kSub; ++r) {
      float x0, x1;
      if (view.type == Type::bf16)
        ptx::unpack_bf16(x[r], x0, x1);
      else
        ptx::unpack_f16(x[r], x0, x1);
      put(r, x0, x1);
    }
  }
}

// Decays of two channels of a sub-block; 1 where rows or channels do not exist. Row by row through
// this lane's places of `rows`: unrolled, the gate's forms are a third of the kernel's code.
template <int kStride>
__device__ __forceinline__ void load_row_decays(const ChunkParams& p, const Place& place, int sub,
                                                int channel, float* rows, float (&d)[kSub][2]) {
  load_raw_gates<kStride>(p, place, sub, channel, rows);
  const Problem& problem = p.problem;
  float bias[2] = {};
#pragma unroll
  for (int e = 0; e < 2; ++e)
    if (channel + e < p.dim_k) bias[e] = gradient::bias_of(problem, p.args, place.hv, channel + e);
  const float factor = gate_factor(problem, p.args, place.hv);
#pragma unroll 1
  for (int r = 0; r < kSub; ++r) {
    auto* two = reinterpret_cast<float2*>(rows + r * kStride);
    float x[1][2] = {{two->x, two->y}};
    decays_of(problem, bias, factor, x);
    const bool exists = sub * kSub + r < place.rows;
    *two = make_float2(exists && channel < p.dim_k ? x[0][0] : 1.0f,
                       exists && channel + 1 < p.dim_k ? x[0][1] : 1.0f);
  }
#pragma unroll
  for (int r = 0; r < kSub; ++r) {
    const float2 two = *reinterpret_cast<const float2*>(rows + r * kStride);
    d[r][0] = two.x, d[r][1] = two.y;
  }
}

template <int kDim>
__device__ __forceinline__ void store_pair_row(char* tile, int row, int channel, float x0,
                                               float x1) {
  *reinterpret_cast<uint32_t*>(tile + swizzled<kDim>(row, channel / 8) + channel % 8 * 2) =
      pack<kBf16>(x0, x1);
}

// Rows under decays, as operands of the products between halves.
template <int kDim, bool kDelta>
__device__ __forceinline__ void store_operands(const SubBlock& x, const Around<2>& around, int sub,
                                               int channel, ChannelGradientShared<kDim>& s) {
  const int block = sub / 2;
  const bool odd = sub % 2 != 0;
  const auto each_row = [&](const uint32_t (&rows)[kSub], bool from_start, auto&& put) {
    float decay[2] = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
      const int r = from_start ? i : kSub - 1 - i;
      float y[2];
      unpack<kBf16>(rows[r], y[0], y[1]);
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (from_start) decay[e] *= x.d[r][e];
        y[e] *= decay[e];
        if (!from_start) decay[e] *= x.d[r][e];
      }
      put(r, y[0], y[1]);
    }
  };
  const float b0 = around.before16[0], b1 = around.before16[1];
  const float a0 = around.after16[0], a1 = around.after16[1];
  const int first16 = sub % 2 * kSub;
  if (block == 1 || odd) {
    each_row(x.q, true, [&](int r, float y0, float y1) {
      if (block == 1) store_pair_row<kDim>(s.q16, first16 + r, channel, y0 * b0, y1 * b1);
      if (odd) store_pair_row<kDim>(s.rows8[block], r, channel, y0, y1);
    });
    if (kDelta)
      each_row(x.k, true, [&](int r, float y0, float y1) {
        if (block == 1) store_pair_row<kDim>(s.k16, first16 + r, channel, y0 * b0, y1 * b1);
        if (odd) store_pair_row<kDim>(s.rows8[block], kSub + r, channel, y0, y1);
      });
    else if (odd)
      for (int r = 0; r < kSub; ++r)
        store_pair_row<kDim>(s.rows8[block], kSub + r, channel, 0.0f, 0.0f);
  }
  if (block == 0 || !odd)
    each_row(x.k, false, [&](int r, float y0, float y1) {
      if (block == 0) store_pair_row<kDim>(s.end16, first16 + r, channel, y0 * a0, y1 * a1);
      if (!odd) store_pair_row<kDim>(s.end8[block], r, channel, y0, y1);
    });
}

}  // namespace linattn::cuda::chunk::gradients
