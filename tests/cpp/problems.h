// Problems that the C interface takes, as the starting point of tests that break them.
#pragma once

#include "linattn/linattn.hpp"

namespace problems {

using linattn::tensor;
constexpr int64_t B = 2, T = 70, H = 2, HV = 4, K = 32, V = 48, N = 3, P = 5, S = 2;

// B sequences of T tokens with states in and out.
inline linattn::Problem kda() {
  return {
      .family = linattn::Family::kda,
      .gate = linattn::Gate::channel,
      .q = tensor<float>({B, T, H, K}),
      .k = tensor<float>({B, T, H, K}),
      .v = tensor<float>({B, T, HV, V}),
      .g = tensor<float>({B, T, HV, K}),
      .beta = tensor<float>({B, T, HV}),
      .initial_state = tensor<float>({B, HV, K, V}),
      .o = tensor<float>({B, T, HV, V}),
      .final_state = tensor<float>({B, HV, K, V}),
  };
}

inline linattn::Problem simple_gla() {
  linattn::Problem p = kda();
  p.family = linattn::Family::simple_gla;
  p.gate = linattn::Gate::head;
  p.g = tensor<float>({B, T, HV});
  p.beta = {};
  return p;
}

// N packed sequences, batch 1.
inline linattn::Problem packed() {
  linattn::Problem p = kda();
  for (linattn_tensor* t : {&p.q, &p.k, &p.v, &p.g, &p.beta, &p.o}) t->size[0] = 1;
  p.initial_state = p.final_state = tensor<float>({N, HV, K, V});
  p.cu_seqlens = tensor<int64_t>({N + 1});
  return p;
}

// Decode of B sequences in a pool of P slots.
inline linattn::Problem pooled() {
  linattn::Problem p = kda();
  p.form = linattn::Form::recurrent;
  p.q = p.k = tensor<float>({B, 1, H, K});
  p.v = p.o = tensor<float>({B, 1, HV, V});
  p.g = tensor<float>({B, 1, HV, K});
  p.beta = tensor<float>({B, 1, HV});
  p.initial_state = tensor<float>({P, HV, K, V});
  p.final_state = {};
  p.state_indices = tensor<int32_t>({B});
  return p;
}

inline linattn::Problem backward() {
  linattn::Problem p = kda();
  p.pass = linattn::Pass::backward;
  p.o = p.final_state = {};
  p.do_ = tensor<float>({B, T, HV, V});
  p.dht = p.dh0 = p.initial_state;
  p.dq = p.q, p.dk = p.k, p.dv = p.v, p.dg = p.g, p.dbeta = p.beta;
  return p;
}

}  // namespace problems
