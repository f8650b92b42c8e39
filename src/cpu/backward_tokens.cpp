// Between the caller's tensors and the rows of a chunk, with the chain rules of norm, scale, gate
// and beta forms on the way back.
#include <algorithm>
#include <cmath>

#include "cpu/backward_chunk.h"
#include "cpu/states.h"
#include "recurrence/element.h"

namespace linattn::cpu {

void HeadBackward::enter_head(int64_t sequence, const TokenRange& range, int64_t hv,
                              const Sums& sums) {
  sequence_ = sequence, range_ = range, sums_ = sums;
  place_ = {range.batch, range.begin, 0, hv};
}

ChunkPlace HeadBackward::place_of(int64_t chunk) const {
  ChunkPlace place = place_;
  place.first = range_.begin + chunk * z_.chunk;
  place.count = std::clamp<int64_t>(range_.end - place.first, 0, z_.chunk);
  return place;
}

void HeadBackward::enter_chunk(int64_t chunk) {
  place_ = place_of(chunk);
  n_ = place_.count;
}

RowsAhead HeadBackward::qk_ahead(const TokenView& view, const void* data,
                                 const ChunkPlace& place) const {
  return view.present() ? rows_ahead(view, data, place, head_qk(), 0, p_.dim_k) : RowsAhead{};
}
RowsAhead HeadBackward::v_ahead(const TokenView& view, const void* data,
                                const ChunkPlace& place) const {
  return view.present() ? rows_ahead(view, data, place, place.head, 0, p_.dim_v) : RowsAhead{};
}
RowsAhead HeadBackward::gates_ahead(const TokenView& view, const void* data,
                                    const ChunkPlace& place) const {
  const bool rows = channel() && view.present();
  return rows ? rows_ahead(view, data, place, place.head, 0, p_.dim_k) : RowsAhead{};
}

void HeadBackward::load_initial_state(float* s) const {
  const StatePlace place = p_.initial_state.present()
                               ? state_place(p_.initial_state, args_.initial_state, sequence_, 0,
                                             place_.head, 0, p_.dim_v)
                               : StatePlace{.columns = p_.dim_v};
  load_state(place, p_.dim_k, s, z_.ld_v, s_.dqk_t);
}

void HeadBackward::load_state_gradient() {
  const StatePlace place =
      p_.dht.present() ? state_place(p_.dht, args_.dht, sequence_, 0, place_.head, 0, p_.dim_v)
                       : StatePlace{.columns = p_.dim_v};
  load_state(place, p_.dim_k, s_.ds, z_.ld_v, s_.dqk_t);
}

void HeadBackward::store_state_gradient() const {
  if (!p_.dh0.present()) return;
  store_state(state_place(p_.dh0, args_.dh0, sequence_, 0, place_.head, 0, p_.dim_v), p_.dim_k,
              s_.ds, z_.ld_v, s_.dqk_t);
}

void HeadBackward::load_rows(const TokenView& view, const void* data, int64_t head, int64_t dim,
                             float* out, int64_t ld) const {
  load_token_rows(view, data, place_, head, 0, dim, out, ld);
}

void HeadBackward::load_qk(bool with_q) {
  float* k = s_.qk + n_ * z_.ld_k;
  load_rows(p_.k, args_.k, head_qk(), p_.dim_k, k, z_.ld_k);
  if (p_.qk_norm) {
    kernels_.inverse_norms(k, z_.ld_k, n_, p_.dim_k, s_.inverse_norms);
    kernels_.scale_rows(k, z_.ld_k, n_, p_.dim_k, s_.inverse_norms, 1);
  }
  if (!with_q) return;
  load_rows(p_.q, args_.q, head_qk(), p_.dim_k, s_.qk, z_.ld_k);
  if (p_.qk_norm) kernels_.inverse_norms(s_.qk, z_.ld_k, n_, p_.dim_k, s_.inverse_norms);
  kernels_.scale_rows(s_.qk, z_.ld_k, n_, p_.dim_k, p_.qk_norm ? s_.inverse_norms : nullptr,
                      static_cast<float>(p_.scale));
}

// One number for each token of the chunk.
void HeadBackward::load_row(const TokenView& view, const void* data, float* out) const {
  kernels_.load_rows(element_at(data, view.type, view.at(place_.batch, place_.first, place_.head)),
                     element(view.type), 0, view.t, 1, n_, out, 0);
}

void HeadBackward::load_decays() {
  float* g = channel() ? s_.a : s_.decay;
  const int64_t rows = channel() ? n_ : 1, columns = channel() ? p_.dim_k : n_;
  load_gates(p_, args_, place_, g, z_.ld_k, s_.bias);
  for (int64_t i = 0; i < rows; ++i)
    kernels_.exp(g + i * z_.ld_k, padded(columns), g + i * z_.ld_k);
}

void HeadBackward::store_dbeta() const {
  if (p_.beta_form != BetaForm::value) {
    // sigmoid' = sigmoid(x) sigmoid(-x), and beta already holds the first, times 2 in that form.
    load_row(p_.beta, args_.beta, s_.logit);
    for (int64_t i = 0; i < n_; ++i) s_.logit[i] = -s_.logit[i];
    kernels_.sigmoid(s_.logit, n_, s_.logit);
    for (int64_t i = 0; i < n_; ++i) s_.dbeta[i] *= s_.beta[i] * s_.logit[i];
  }
  kernels_.store_rows(
      s_.dbeta, 0, 1, n_,
      element_at(args_.dbeta, p_.dbeta.type, p_.dbeta.at(place_.batch, place_.first, place_.head)),
      element(p_.dbeta.type), 0, p_.dbeta.t);
}

void HeadBackward::store_dv() const {
  if (p_.dv.present())
    store_token_rows(s_.dr, z_.ld_v, p_.dv, args_.dv, place_, place_.head, 0, p_.dim_v);
}

void HeadBackward::clear_gate_sums() {
  dA_log_ = 0;
  std::fill_n(s_.dbias_sum, p_.dim_k, 0.0);
}

void HeadBackward::store_gate_gradient() {
  if (p_.gate_form != GateForm::given) gate_form_gradient();
  if (!p_.dg.present()) return;
  if (channel())
    store_token_rows(s_.dlog, z_.ld_k, p_.dg, args_.dg, place_, place_.head, 0, p_.dim_k);
  else
    kernels_.store_rows(
        s_.dlog, 0, 1, n_,
        element_at(args_.dg, p_.dg.type, p_.dg.at(place_.batch, place_.first, place_.head)),
        element(p_.dg.type), 0, p_.dg.t);
}

void HeadBackward::gate_form_gradient() {
  const int64_t rows = channel() ? n_ : 1, columns = channel() ? p_.dim_k : n_;
  // The decays have served; their place takes the raw values.
  float* raw = channel() ? s_.a : s_.decay;
  const float* bias = nullptr;
  if (channel()) {
    load_rows(p_.g, args_.g, place_.head, p_.dim_k, raw, z_.ld_k);
    if (p_.dt_bias.present()) bias = s_.bias;  // left there by load_gates
  } else {
    load_row(p_.g, args_.g, raw);
    if (p_.dt_bias.present()) {
      std::fill_n(s_.bias, padded(n_),
                  static_cast<float>(
                      load_element(p_.dt_bias.type, args_.dt_bias, place_.head * p_.dt_bias.h)));
      bias = s_.bias;
    }
  }
  const float factor = p_.A_log.present()
                           ? static_cast<float>(std::exp(load_element(p_.A_log.type, args_.A_log,
                                                                      place_.head * p_.A_log.h)))
                           : 1.0f;
  std::fill_n(s_.dbias, padded(columns), 0.0f);
  for (int64_t i = 0; i < rows; ++i)
    std::fill_n(s_.dlog + i * z_.ld_k + columns, padded(columns) - columns, 0.0f);
  dA_log_ += gradient_.gate_gradient({.rows = rows,
                                      .columns = columns,
                                      .ld = z_.ld_k,
                                      .x = raw,
                                      .bias = bias,
                                      .factor = factor,
                                      .lower_bound = static_cast<float>(p_.lower_bound),
                                      .dlog = s_.dlog,
                                      .dbias = s_.dbias});
  for (int64_t c = 0; c < columns; ++c) s_.dbias_sum[channel() ? c : 0] += s_.dbias[c];
}

void HeadBackward::store_qk_gradient() {
  float* const gradients[2] = {s_.qk_in, s_.qk_in + n_ * z_.ld_k};
  float* const sums[2] = {sums_.dq, sums_.dk};
  const bool wanted[2] = {p_.dq.present(), p_.dk.present()};
  for (int i = 0; i < 2; ++i) {
    if (!wanted[i]) continue;
    if (sums[i] == nullptr) {
      i == 0 ? finish_dq(place_, gradients[i]) : finish_dk(place_, gradients[i]);
      continue;
    }
    for (int64_t r = 0; r < n_; ++r) {
      const float* from = gradients[i] + r * z_.ld_k;
      float* to = sums[i] + ((place_.first + r) * p_.heads_qk + head_qk()) * p_.dim_k;
      for (int64_t c = 0; c < p_.dim_k; ++c) to[c] = sums_.add ? to[c] + from[c] : from[c];
    }
  }
}

void HeadBackward::finish_dq(const ChunkPlace& place, float* dq) {
  finish_rows(p_.q, args_.q, p_.dq, args_.dq, place, static_cast<float>(p_.scale), dq);
}

void HeadBackward::finish_dk(const ChunkPlace& place, float* dk) {
  finish_rows(p_.k, args_.k, p_.dk, args_.dk, place, 1, dk);
}

void HeadBackward::finish_rows(const TokenView& view, const void* input, const TokenView& out_view,
                               void* out, const ChunkPlace& place, float factor, float* dx) {
  if (factor != 1) kernels_.scale_rows(dx, z_.ld_k, place.count, p_.dim_k, nullptr, factor);
  if (p_.qk_norm) {
    float* x = s_.dlog;
    load_token_rows(view, input, place, head_qk(), 0, p_.dim_k, x, z_.ld_k);
    kernels_.inverse_norms(x, z_.ld_k, place.count, p_.dim_k, s_.inverse_norms);
    gradient_.norm_gradient(x, s_.inverse_norms, z_.ld_k, place.count, p_.dim_k, dx);
  }
  store_token_rows(dx, z_.ld_k, out_view, out, place, head_qk(), 0, p_.dim_k);
}

}  // namespace linattn::cpu
