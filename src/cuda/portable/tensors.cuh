// Elements by run-time type, gates and beta, for kernels that take the problem as it is.
#pragma once

#include <cstdint>

#include "cuda/ptx/convert.cuh"
#include "cuda/ptx/special.cuh"
#include "cuda/ptx/warp.cuh"
#include "recurrence/sequences.h"

namespace linattn::cuda {

__device__ __forceinline__ float load_element(Type type, const void* data, int64_t offset) {
  if (type == Type::f32) return static_cast<const float*>(data)[offset];
  const uint32_t bits = static_cast<const uint16_t*>(data)[offset];
  float low, high;
  if (type == Type::bf16)
    ptx::unpack_bf16(bits, low, high);
  else
    ptx::unpack_f16(bits, low, high);
  return low;
}

__device__ __forceinline__ void store_element(Type type, void* data, int64_t offset, float x) {
  if (type == Type::f32)
    static_cast<float*>(data)[offset] = x;
  else
    static_cast<uint16_t*>(data)[offset] = static_cast<uint16_t>(
        type == Type::bf16 ? ptx::pack_bf16(x, 0.0f) : ptx::pack_f16(x, 0.0f));
}

// kCount (2 or 4) neighbours, of which the first `valid` exist, the others read as zero; `aligned`
// allows one access for all.
template <int kCount>
__device__ __forceinline__ void load_channels(Type type, const void* data, int64_t offset,
                                              int valid, bool aligned, float (&x)[kCount]) {
#pragma unroll
  for (int e = 0; e < kCount; ++e) x[e] = 0.0f;
  if (aligned && valid >= kCount) {
    if (type == Type::f32) {
      const auto* from = static_cast<const float*>(data) + offset;
      if constexpr (kCount == 4) {
        const float4 four = *reinterpret_cast<const float4*>(from);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
      } else {
        const float2 two = *reinterpret_cast<const float2*>(from);
        x[0] = two.x, x[1] = two.y;
      }
      return;
    }
    uint32_t pairs[kCount / 2];
    const auto* from = static_cast<const uint16_t*>(data) + offset;
    if constexpr (kCount == 4) {
      const uint2 four = *reinterpret_cast<const uint2*>(from);
      pairs[0] = four.x, pairs[1] = four.y;
    } else {
      pairs[0] = *reinterpret_cast<const uint32_t*>(from);
    }
#pragma unroll
    for (int e = 0; e < kCount; e += 2) {
      if (type == Type::bf16)
        ptx::unpack_bf16(pairs[e / 2], x[e], x[e + 1]);
      else
        ptx::unpack_f16(pairs[e / 2], x[e], x[e + 1]);
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e)
    if (e < valid) x[e] = load_element(type, data, offset + e);
}

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

// log(1 + exp(x)), linear above 20. Below -4 the first terms of the series keep what 1 + t loses.
__device__ __forceinline__ float softplus(float x) {
  if (x > 20.0f) return x;
  const float t = __expf(x);
  return x < -4.0f ? t * fmaf(t, fmaf(t, 0.33333333f, -0.5f), 1.0f) : __logf(1.0f + t);
}

// Natural-log decay from what g holds. `factor` is exp(A_log), 1 without A_log.
__device__ __forceinline__ float log_decay(const Problem& p, float x, float bias, float factor) {
  if (p.gate_form == GateForm::given) return x;
  x += bias;
  if (p.gate_form == GateForm::softplus) return -factor * softplus(x);
  return static_cast<float>(p.lower_bound) * sigmoid(factor * x);
}

// Decays of one token and head in place of what g holds, for the kCount channels whose bias is
// given. The form is asked once for all of them.
template <int kRows, int kCount>
__device__ __forceinline__ void decays_of(const Problem& p, const float (&bias)[kCount],
                                          float factor, float (&x)[kRows][kCount]) {
  constexpr float kLog2E = 1.4426950408889634f;
  if (p.gate_form == GateForm::given) {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int e = 0; e < kCount; ++e) x[r][e] = ptx::exp2(kLog2E * x[r][e]);
  } else if (p.gate_form == GateForm::bounded) {
    const float slope = -kLog2E * factor, bound = kLog2E * static_cast<float>(p.lower_bound);
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int e = 0; e < kCount; ++e)
        x[r][e] = ptx::exp2(bound * ptx::reciprocal(1.0f + ptx::exp2(slope * (x[r][e] + bias[e]))));
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r)
#pragma unroll
      for (int e = 0; e < kCount; ++e)
        x[r][e] = ptx::exp2(-kLog2E * factor * softplus(x[r][e] + bias[e]));
  }
}

__device__ __forceinline__ float gate_factor(const Problem& p, const linattn_args& args,
                                             int64_t hv) {
  return p.A_log.present() ? expf(static_cast<const float*>(args.A_log)[hv * p.A_log.h]) : 1.0f;
}

// Beta from what its tensor holds; 1 without one.
__device__ __forceinline__ float beta_of(const Problem& p, float x) {
  if (!p.beta.present()) return 1.0f;
  if (p.beta_form == BetaForm::value) return x;
  return (p.beta_form == BetaForm::sigmoid2 ? 2.0f : 1.0f) * sigmoid(x);
}

__device__ __forceinline__ float load_beta(const Problem& p, const linattn_args& args, int64_t b,
                                           int64_t t, int64_t hv) {
  if (!p.beta.present()) return 1.0f;
  return beta_of(p, load_element(p.beta.type, args.beta, p.beta.at(b, t, hv)));
}

// Offsets past T are the caller's fault, but not a reason to leave the tensors.
__device__ __forceinline__ TokenRange bounded_range(const Problem& p, const linattn_args& args,
                                                    int64_t n) {
  TokenRange range = token_range(p, args.cu_seqlens, n);
  const auto bounded = [&](int64_t t) { return t < 0 ? 0 : t > p.num_tokens ? p.num_tokens : t; };
  range.begin = bounded(range.begin), range.end = bounded(range.end);
  if (range.end < range.begin) range.end = range.begin;
  return range;
}

}  // namespace linattn::cuda
