// R: what the update writes, E: its delta, R = beta E with
//   (I + A diag(beta)) E = V - K_in S            forward, per chunk
//   S <- gamma (.) S + K_out^T R
// and backward, with X = [dO; -dV]:
//   (I + A^T diag(beta)) dR = P^T dO + K_out dS,   dV = beta dR,   dbeta_i = <dR_i, E_i>
//   [dP; dA] = tril(X R^T),  [dQ_in; dK_in] = X S^T,  dK_out = R dS^T
//   dS <- gamma (.) dS + [Q_in; K_in]^T X
// The additive update has R = V, dV = dR and no A, E, K_in.
#include "cpu/backward_chunk.h"

#include <cstring>

namespace linattn::cpu {

HeadBackward::HeadBackward(const Problem& p, const linattn_args& args, const BackwardSizes& sizes,
                           const ChunkScratch& scratch)
    : p_(p),
      args_(args),
      z_(sizes),
      s_(scratch),
      kernels_(kernels()),
      gradient_(*kernels().gradient),
      delta_(p.update == Update::delta),
      token_gradients_(p.dq.present() || p.dk.present() || wants_gate_gradient(p)) {}

void HeadBackward::forward(int64_t chunk, const Slot& slot, float* next) {
  enter_chunk(chunk);
  const ChunkPlace after = place_of(chunk + 1);  // of no tokens past the last
  const RowsAhead keys[kMostAhead] = {qk_ahead(p_.k, args_.k, after),
                                      gates_ahead(p_.g, args_.g, after)};
  const RowsAhead values[kMostAhead] = {delta_ ? RowsAhead{} : keys[0],
                                        delta_ ? RowsAhead{} : keys[1],
                                        v_ahead(p_.v, args_.v, after)};
  load_qk(false);
  load_decays();
  apply_decays(false);
  if (delta_) {
    load_beta(p_, args_, place_, s_.beta);
    const float* const rows[2] = {nullptr, k_rows()};
    float* const out[2] = {nullptr, slot.a};
    products(rows, out);
    for (int64_t i = 0; i < n_; ++i)
      for (int64_t j = 0; j < i; ++j)
        s_.weights[i * z_.ld_c + j] = slot.a[i * z_.ld_c + j] * s_.beta[j];
    load_rows(p_.v, args_.v, place_.head, p_.dim_v, slot.e, z_.ld_v);
    kernels_.gemm({.m = n_,
                   .n = p_.dim_v,
                   .k = p_.dim_k,
                   .a = s_.qk_in + n_ * z_.ld_k,
                   .a_row = z_.ld_k,
                   .b = slot.s,
                   .b_row = z_.ld_v,
                   .c = slot.e,
                   .c_row = z_.ld_v,
                   .into = Into::subtract,
                   .ahead = keys});
    kernels_.lower_solve(
        {.m = n_, .n = p_.dim_v, .a = s_.weights, .a_row = z_.ld_c, .c = slot.e, .c_row = z_.ld_v});
  }
  if (next == nullptr) return;
  if (delta_)
    gradient_.scaled_copy(slot.e, z_.ld_v, n_, p_.dim_v, s_.beta, 1, s_.dr, z_.ld_v, false);
  else
    load_rows(p_.v, args_.v, place_.head, p_.dim_v, s_.dr, z_.ld_v);
  if (next != slot.s)
    std::memcpy(next, slot.s, static_cast<size_t>(p_.dim_k * z_.ld_v) * sizeof(float));
  kernels_.gemm({.m = p_.dim_k,
                 .n = p_.dim_v,
                 .k = n_,
                 .a = s_.k_out,
                 .a_row = 1,
                 .a_col = z_.ld_k,
                 .b = s_.dr,
                 .b_row = z_.ld_v,
                 .c = next,
                 .c_row = z_.ld_v,
                 .into = Into::add,
                 .row_scale = s_.gamma,
                 .ahead = values});
}

// dr: from P^T dO + K_out dS to the gradient of R, then to that of V; the rest of x.
void HeadBackward::solve_backward(const Slot& slot) {
  for (int64_t i = 0; i < n_; ++i)
    for (int64_t j = 0; j < i; ++j)
      s_.weights[i * z_.ld_c + j] = slot.a[i * z_.ld_c + j] * s_.beta[i];
  kernels_.upper_solve({.m = n_,
                        .n = p_.dim_v,
                        .a = s_.weights,
                        .a_row = 1,
                        .a_col = z_.ld_c,
                        .c = s_.dr,
                        .c_row = z_.ld_v});
  if (p_.dbeta.present()) {
    gradient_.row_dots(s_.dr, slot.e, z_.ld_v, n_, p_.dim_v, s_.dbeta);
    store_dbeta();
  }
  kernels_.scale_rows(s_.dr, z_.ld_v, n_, p_.dim_v, s_.beta, 1);
  gradient_.scaled_copy(s_.dr, z_.ld_v, n_, p_.dim_v, nullptr, -1, s_.x + n_ * z_.ld_v, z_.ld_v,
                        false);
}

void HeadBackward::backward(int64_t chunk, const Slot& slot) {
  enter_chunk(chunk);
  load_qk(true);
  load_decays();
  apply_decays(true);
  const int64_t dim_k = p_.dim_k, dim_v = p_.dim_v, stacked = delta_ ? 2 * n_ : n_;
  // What is written soon, in the order in which it is, and what the chunk before reads.
  const ChunkPlace before = place_of(chunk - (chunk > 0 ? 1 : 0));
  const RowsAhead values[kMostAhead] = {v_ahead(p_.dv, args_.dv, place_)};
  const RowsAhead tokens[kMostAhead] = {
      sums_.dq == nullptr ? qk_ahead(p_.dq, args_.dq, place_) : RowsAhead{},
      sums_.dk == nullptr ? qk_ahead(p_.dk, args_.dk, place_) : RowsAhead{}};
  const RowsAhead gates[kMostAhead] = {gates_ahead(p_.dg, args_.dg, place_),
                                       qk_ahead(p_.k, args_.k, before)};
  const RowsAhead inputs[kMostAhead] = {
      qk_ahead(p_.q, args_.q, before), gates_ahead(p_.g, args_.g, before),
      v_ahead(p_.do_, args_.do_, before), delta_ ? RowsAhead{} : v_ahead(p_.v, args_.v, before)};
  {
    const float* const rows[2] = {s_.qk, nullptr};
    float* const out[2] = {s_.p, nullptr};
    products(rows, out);
  }
  load_rows(p_.do_, args_.do_, place_.head, dim_v, s_.x, z_.ld_v);
  kernels_.upper_product({.m = n_,
                          .n = dim_v,
                          .a = s_.p,
                          .a_row = 1,
                          .a_col = z_.ld_c,
                          .b = s_.x,
                          .b_row = z_.ld_v,
                          .c = s_.dr,
                          .c_row = z_.ld_v});
  kernels_.gemm({.m = n_,
                 .n = dim_v,
                 .k = dim_k,
                 .a = s_.k_out,
                 .a_row = z_.ld_k,
                 .b = s_.ds,
                 .b_row = z_.ld_v,
                 .c = s_.dr,
                 .c_row = z_.ld_v,
                 .into = Into::add,
                 .ahead = values});
  const float* r = s_.v;
  if (delta_) {
    load_beta(p_, args_, place_, s_.beta);
    solve_backward(slot);
    kernels_.scale_rows(slot.e, z_.ld_v, n_, dim_v, s_.beta, 1);
    r = slot.e;
  } else if (token_gradients_) {
    load_rows(p_.v, args_.v, place_.head, dim_v, s_.v, z_.ld_v);
  }
  store_dv();

  if (token_gradients_) {
    kernels_.transpose(s_.x, z_.ld_v, stacked, dim_v, s_.x_t, z_.ld_m);
    kernels_.transpose(r, z_.ld_v, n_, dim_v, s_.r_t, z_.ld_c);
    kernels_.gemm({.m = stacked,
                   .n = n_,
                   .k = dim_v,
                   .a = s_.x,
                   .a_row = z_.ld_v,
                   .b = s_.r_t,
                   .b_row = z_.ld_c,
                   .c = s_.dpa,
                   .c_row = z_.ld_c});
    kernels_.gemm({.m = dim_k,
                   .n = stacked,
                   .k = dim_v,
                   .a = slot.s,
                   .a_row = z_.ld_v,
                   .b = s_.x_t,
                   .b_row = z_.ld_m,
                   .c = s_.dqk_t,
                   .c_row = z_.ld_m,
                   .ahead = tokens});
    kernels_.gemm({.m = dim_k,
                   .n = n_,
                   .k = dim_v,
                   .a = s_.ds,
                   .a_row = z_.ld_v,
                   .b = s_.r_t,
                   .b_row = z_.ld_c,
                   .c = s_.x_t,
                   .c_row = z_.ld_c,
                   .ahead = gates});
    if (gate_gradient_wanted()) {
      gradient_.row_dots(slot.s, s_.ds, z_.ld_v, dim_k, dim_v, s_.through);
      for (int64_t c = 0; c < dim_k; ++c) s_.through[c] *= s_.gamma[c];
    }
  }
  kernels_.gemm({.m = dim_k,
                 .n = dim_v,
                 .k = stacked,
                 .a = s_.qk_in,
                 .a_row = 1,
                 .a_col = z_.ld_k,
                 .b = s_.x,
                 .b_row = z_.ld_v,
                 .c = s_.ds,
                 .c_row = z_.ld_v,
                 .into = Into::add,
                 .row_scale = s_.gamma,
                 .ahead = inputs});
  if (!token_gradients_) return;
  kernels_.transpose(s_.dqk_t, z_.ld_m, dim_k, stacked, s_.qk_in, z_.ld_k);
  kernels_.transpose(s_.x_t, z_.ld_c, dim_k, n_, s_.k_out, z_.ld_k);
  channel() ? channel_gradient() : head_gradient(slot);
  if (gate_gradient_wanted()) store_gate_gradient();
  store_qk_gradient();
}

}  // namespace linattn::cpu
