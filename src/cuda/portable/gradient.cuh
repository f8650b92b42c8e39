// Gates and beta in full fp32 precision, and the chain rules of what is computed inside an
// operator: raw gates, sigmoids, norms.
#pragma once

#include "cuda/portable/tensors.cuh"

namespace linattn::cuda::gradient {

__device__ __forceinline__ float precise_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float precise_softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

// exp of the log decay; x is what g holds, with its bias. `factor` is exp(A_log), 1 without A_log.
__device__ __forceinline__ float decay_of(const Problem& p, float x, float factor) {
  if (p.gate_form == GateForm::given) return expf(x);
  if (p.gate_form == GateForm::softplus) return expf(-factor * precise_softplus(x));
  return expf(static_cast<float>(p.lower_bound) * precise_sigmoid(factor * x));
}

// A decay of zero has log decay -inf and passes no gradient, whatever the derivative's limit.
__device__ __forceinline__ float chain(float gradient, float derivative) {
  return gradient == 0.0f ? 0.0f : gradient * derivative;
}

// From the gradient of a log decay to those of what g holds (and of its bias) and of A_log.
// kPrecise is for fp32 inputs; otherwise functions of a few instructions do.
struct GateGradient {
  float g, A_log;
};
template <bool kPrecise>
__device__ __forceinline__ GateGradient gate_gradient(const Problem& p, float dlog, float x,
                                                      float factor) {
  if (p.gate_form == GateForm::given) return {dlog, 0.0f};
  if (p.gate_form == GateForm::softplus)
    return {chain(dlog, -factor * (x > 20.0f  ? 1.0f
                                   : kPrecise ? precise_sigmoid(x)
                                              : sigmoid(x))),
            chain(dlog, -factor * (kPrecise ? precise_softplus(x) : softplus(x)))};
  // sigmoid(z) sigmoid(-z) = t / (1 + t)^2 for t = exp(-|z|).
  const float z = factor * x;
  const float t = kPrecise ? expf(-fabsf(z)) : __expf(-fabsf(z));
  const float r = kPrecise ? 1.0f / (1.0f + t) : __fdividef(1.0f, 1.0f + t);
  const float slope = static_cast<float>(p.lower_bound) * t * r * r;
  // A slope of zero ends both, where z may be infinite.
  return {slope == 0.0f ? 0.0f : chain(dlog, slope * factor),
          slope == 0.0f ? 0.0f : chain(dlog, slope * z)};
}

struct Beta {
  float value, by_logit;
};
__device__ __forceinline__ Beta load_beta(const Problem& p, const linattn_args& args, int64_t b,
                                          int64_t t, int64_t hv) {
  if (!p.beta.present()) return {1.0f, 1.0f};
  const float x = load_element(p.beta.type, args.beta, p.beta.at(b, t, hv));
  if (p.beta_form == BetaForm::value) return {x, 1.0f};
  const float value = (p.beta_form == BetaForm::sigmoid2 ? 2.0f : 1.0f) * precise_sigmoid(x);
  return {value, value * precise_sigmoid(-x)};
}

__device__ __forceinline__ float bias_of(const Problem& p, const linattn_args& args, int64_t hv,
                                         int64_t channel) {
  if (!p.dt_bias.present()) return 0.0f;
  return load_element(p.dt_bias.type, args.dt_bias, hv * p.dt_bias.h + channel * p.dt_bias.k);
}

__device__ __forceinline__ bool wants_gate(const Problem& p) {
  return p.dg.present() || p.dA_log.present() || p.ddt_bias.present();
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int bit = 16; bit >= 1; bit >>= 1) x += ptx::shuffle_xor(x, bit);
  return x;
}

__device__ __forceinline__ float inverse_norm(float squares) {
  return 1.0f / sqrtf(squares + 1e-6f);
}

}  // namespace linattn::cuda::gradient
