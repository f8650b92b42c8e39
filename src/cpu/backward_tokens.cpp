// Between the caller's tensors and the rows of a chunk: types, strides, norms, gate and beta forms,
// and their chain rules on the way back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/backward_chunk.h"
#include "recurrence/element.h"

namespace linattn::cpu {
namespace {

Element element(Type type) { return static_cast<Element>(type); }

const char* at(const void* data, Type type, int64_t offset) {
  return static_cast<const char*>(data) + offset * size_of(type);
}
char* at(void* data, Type type, int64_t offset) {
  return static_cast<char*>(data) + offset * size_of(type);
}

}  // namespace

void HeadBackward::enter_head(int64_t sequence, const TokenRange& range, int64_t hv,
                              const Sums& sums) {
  sequence_ = sequence, range_ = range, hv_ = hv, h_ = hv / p_.group(), sums_ = sums;
  if (p_.gate == Gate::head_constant)
    constant_decay_ = static_cast<float>(
        std::exp(load_element(p_.g_gamma.type, args_.g_gamma, hv * p_.g_gamma.h)));
  gate_factor_ =
      p_.A_log.present()
          ? static_cast<float>(std::exp(load_element(p_.A_log.type, args_.A_log, hv * p_.A_log.h)))
          : 1.0f;
  if (!p_.dt_bias.present()) return;
  const char* bias = at(args_.dt_bias, p_.dt_bias.type, hv * p_.dt_bias.h);
  if (channel())
    kernels_.load_rows(bias, element(p_.dt_bias.type), 0, p_.dt_bias.k, 1, p_.dim_k, s_.bias, 0);
  else
    kernels_.load_rows(bias, element(p_.dt_bias.type), 0, 0, 1, z_.rows, s_.bias, 0);
}

void HeadBackward::enter_chunk(int64_t chunk) {
  t_ = range_.begin + chunk * z_.chunk;
  n_ = std::min(z_.chunk, range_.end - t_);
}

void HeadBackward::load_initial_state(float* s) const {
  if (!p_.initial_state.present()) {
    std::fill_n(s, p_.dim_k * z_.ld_v, 0.0f);
    return;
  }
  const StateView& view = p_.initial_state;
  kernels_.load_rows(
      at(static_cast<const void*>(args_.initial_state), view.type, view.at(sequence_, hv_, 0, 0)),
      element(view.type), view.k, view.v, p_.dim_k, p_.dim_v, s, z_.ld_v);
}

void HeadBackward::load_state_gradient() {
  if (!p_.dht.present()) {
    std::fill_n(s_.ds, p_.dim_k * z_.ld_v, 0.0f);
    return;
  }
  kernels_.load_rows(at(args_.dht, p_.dht.type, p_.dht.at(sequence_, hv_, 0, 0)),
                     element(p_.dht.type), p_.dht.k, p_.dht.v, p_.dim_k, p_.dim_v, s_.ds, z_.ld_v);
}

void HeadBackward::store_state_gradient() const {
  if (!p_.dh0.present()) return;
  kernels_.store_rows(s_.ds, z_.ld_v, p_.dim_k, p_.dim_v,
                      at(args_.dh0, p_.dh0.type, p_.dh0.at(sequence_, hv_, 0, 0)),
                      element(p_.dh0.type), p_.dh0.k, p_.dh0.v);
}

void HeadBackward::load_rows(const TokenView& view, const void* data, int64_t head, int64_t dim,
                             float* out, int64_t ld) const {
  kernels_.load_rows(at(data, view.type, view.at(range_.batch, t_, head)), element(view.type),
                     view.t, view.d, n_, dim, out, ld);
}

void HeadBackward::load_qk(bool with_q) {
  float* k = s_.qk + n_ * z_.ld_k;
  load_rows(p_.k, args_.k, h_, p_.dim_k, k, z_.ld_k);
  if (p_.qk_norm) {
    kernels_.inverse_norms(k, z_.ld_k, n_, p_.dim_k, s_.inverse_norms);
    kernels_.scale_rows(k, z_.ld_k, n_, p_.dim_k, s_.inverse_norms, 1);
  }
  if (!with_q) return;
  load_rows(p_.q, args_.q, h_, p_.dim_k, s_.qk, z_.ld_k);
  if (p_.qk_norm) kernels_.inverse_norms(s_.qk, z_.ld_k, n_, p_.dim_k, s_.inverse_norms);
  kernels_.scale_rows(s_.qk, z_.ld_k, n_, p_.dim_k, p_.qk_norm ? s_.inverse_norms : nullptr,
                      static_cast<float>(p_.scale));
}

// One number for each token of the chunk.
void HeadBackward::load_row(const TokenView& view, const void* data, float* out) const {
  kernels_.load_rows(at(data, view.type, view.at(range_.batch, t_, hv_)), element(view.type), 0,
                     view.t, 1, n_, out, 0);
}

void HeadBackward::load_gates() {
  if (p_.gate == Gate::none || p_.gate == Gate::head_constant) {
    std::fill_n(s_.decay, n_, p_.gate == Gate::none ? 1.0f : constant_decay_);
    return;
  }
  const int64_t rows = channel() ? n_ : 1, columns = channel() ? p_.dim_k : n_;
  float* g = channel() ? s_.a : s_.decay;
  channel() ? load_rows(p_.g, args_.g, hv_, p_.dim_k, g, z_.ld_k) : load_row(p_.g, args_.g, g);
  const float* bias = p_.dt_bias.present() ? s_.bias : nullptr;
  if (p_.gate_form == GateForm::softplus)
    kernels_.gate_softplus(g, z_.ld_k, rows, columns, bias, gate_factor_);
  else if (p_.gate_form == GateForm::bounded)
    kernels_.gate_bounded(g, z_.ld_k, rows, columns, bias, gate_factor_,
                          static_cast<float>(p_.lower_bound));
  for (int64_t i = 0; i < rows; ++i)
    kernels_.exp(g + i * z_.ld_k, padded(columns), g + i * z_.ld_k);
}

void HeadBackward::load_beta() {
  if (!p_.beta.present()) {
    std::fill_n(s_.beta, n_, 1.0f);
    return;
  }
  load_row(p_.beta, args_.beta, s_.beta);
  if (p_.beta_form == BetaForm::value) return;
  for (int64_t i = 0; i < n_; ++i) s_.logit[i] = -s_.beta[i];
  kernels_.sigmoid(s_.beta, n_, s_.beta);
  if (p_.beta_form == BetaForm::sigmoid2) kernels_.scale_rows(s_.beta, 0, 1, n_, nullptr, 2);
}

void HeadBackward::store_dbeta() const {
  if (p_.beta_form != BetaForm::value) {
    // sigmoid' = sigmoid(x) sigmoid(-x), and beta already holds the first, times 2 in that form.
    kernels_.sigmoid(s_.logit, n_, s_.logit);
    for (int64_t i = 0; i < n_; ++i) s_.dbeta[i] *= s_.beta[i] * s_.logit[i];
  }
  kernels_.store_rows(s_.dbeta, 0, 1, n_,
                      at(args_.dbeta, p_.dbeta.type, p_.dbeta.at(range_.batch, t_, hv_)),
                      element(p_.dbeta.type), 0, p_.dbeta.t);
}

void HeadBackward::store_dv() const {
  if (!p_.dv.present()) return;
  kernels_.store_rows(s_.dr, z_.ld_v, n_, p_.dim_v,
                      at(args_.dv, p_.dv.type, p_.dv.at(range_.batch, t_, hv_)),
                      element(p_.dv.type), p_.dv.t, p_.dv.d);
}

void HeadBackward::clear_gate_sums() {
  dA_log_ = 0;
  std::fill_n(s_.dbias_sum, p_.dim_k, 0.0);
}

void HeadBackward::store_gate_gradient() {
  const int64_t rows = channel() ? n_ : 1, columns = channel() ? p_.dim_k : n_;
  if (p_.gate_form != GateForm::given) {
    // The decays have served; their place takes the raw values.
    float* raw = channel() ? s_.a : s_.decay;
    channel() ? load_rows(p_.g, args_.g, hv_, p_.dim_k, raw, z_.ld_k)
              : load_row(p_.g, args_.g, raw);
    std::fill_n(s_.dbias, padded(columns), 0.0f);
    std::fill_n(s_.dlog + (rows - 1) * z_.ld_k + columns, padded(columns) - columns, 0.0f);
    dA_log_ += gradient_.gate_gradient({.rows = rows,
                                        .columns = columns,
                                        .ld = z_.ld_k,
                                        .x = raw,
                                        .bias = p_.dt_bias.present() ? s_.bias : nullptr,
                                        .factor = gate_factor_,
                                        .lower_bound = static_cast<float>(p_.lower_bound),
                                        .dlog = s_.dlog,
                                        .dbias = s_.dbias});
    for (int64_t c = 0; c < columns; ++c) s_.dbias_sum[channel() ? c : 0] += s_.dbias[c];
  }
  if (!p_.dg.present()) return;
  kernels_.store_rows(s_.dlog, z_.ld_k, rows, columns,
                      at(args_.dg, p_.dg.type, p_.dg.at(range_.batch, t_, hv_)),
                      element(p_.dg.type), channel() ? p_.dg.t : 0, channel() ? p_.dg.d : p_.dg.t);
}

void HeadBackward::store_qk_gradient() {
  float* const gradients[2] = {s_.qk_in, s_.qk_in + n_ * z_.ld_k};
  float* const sums[2] = {sums_.dq, sums_.dk};
  const bool wanted[2] = {p_.dq.present(), p_.dk.present()};
  for (int i = 0; i < 2; ++i) {
    if (!wanted[i]) continue;
    if (sums[i] == nullptr) {
      i == 0 ? finish_dq(t_, n_, gradients[i]) : finish_dk(t_, n_, gradients[i]);
      continue;
    }
    for (int64_t r = 0; r < n_; ++r) {
      const float* from = gradients[i] + r * z_.ld_k;
      float* to = sums[i] + ((t_ + r) * p_.heads_qk + h_) * p_.dim_k;
      for (int64_t c = 0; c < p_.dim_k; ++c) to[c] = sums_.add ? to[c] + from[c] : from[c];
    }
  }
}

void HeadBackward::finish_dq(int64_t t, int64_t tokens, float* dq) {
  finish_rows(p_.q, args_.q, p_.dq, args_.dq, t, tokens, static_cast<float>(p_.scale), dq);
}

void HeadBackward::finish_dk(int64_t t, int64_t tokens, float* dk) {
  finish_rows(p_.k, args_.k, p_.dk, args_.dk, t, tokens, 1, dk);
}

void HeadBackward::finish_rows(const TokenView& view, const void* input, const TokenView& out_view,
                               void* out, int64_t t, int64_t tokens, float factor, float* dx) {
  if (factor != 1) kernels_.scale_rows(dx, z_.ld_k, tokens, p_.dim_k, nullptr, factor);
  if (p_.qk_norm) {
    float* x = s_.dlog;
    kernels_.load_rows(at(input, view.type, view.at(range_.batch, t, h_)), element(view.type),
                       view.t, view.d, tokens, p_.dim_k, x, z_.ld_k);
    kernels_.inverse_norms(x, z_.ld_k, tokens, p_.dim_k, s_.inverse_norms);
    gradient_.norm_gradient(x, s_.inverse_norms, z_.ld_k, tokens, p_.dim_k, dx);
  }
  kernels_.store_rows(dx, z_.ld_k, tokens, p_.dim_k,
                      at(out, out_view.type, out_view.at(range_.batch, t, h_)),
                      element(out_view.type), out_view.t, out_view.d);
}

}  // namespace linattn::cpu
