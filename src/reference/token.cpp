#include "reference/token.h"

#include <cmath>
#include <cstring>

#include "recurrence/element.h"

namespace linattn::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

GateValue gate_value(const Problem& p, const linattn_args& args, int64_t b, int64_t t, int64_t hv,
                     int64_t channel) {
  if (p.gate == Gate::none) return {0, 0, 0};
  if (p.gate == Gate::head_constant)
    return {load_element(p.g_gamma.type, args.g_gamma, hv * p.g_gamma.h), 0, 0};
  double x = load_element(p.g.type, args.g, p.g.at(b, t, hv, channel));
  if (p.gate_form == GateForm::given) return {x, 1, 0};
  if (p.dt_bias.present())
    x += load_element(p.dt_bias.type, args.dt_bias, hv * p.dt_bias.h + channel * p.dt_bias.k);
  const double factor =
      p.A_log.present() ? std::exp(load_element(p.A_log.type, args.A_log, hv * p.A_log.h)) : 1;
  if (p.gate_form == GateForm::softplus) {
    const double g = -factor * (x > 20 ? x : std::log1p(std::exp(x)));
    return {g, -factor * (x > 20 ? 1 : sigmoid(x)), g};
  }
  const double z = factor * x;
  const double slope = p.lower_bound * sigmoid(z) * sigmoid(-z);
  return {p.lower_bound * sigmoid(z), slope * factor, slope == 0 ? 0 : slope * z};
}

// Reads a row, scales it to unit length if asked to, returns the factor.
double read_row(const TokenView& view, const void* data, int64_t b, int64_t t, int64_t h,
                int64_t dim, bool normalise, double* row) {
  double squares = 1e-6;
  for (int64_t i = 0; i < dim; ++i) {
    row[i] = load_element(view.type, data, view.at(b, t, h, i));
    squares += row[i] * row[i];
  }
  if (!normalise) return 1;
  const double inverse_norm = 1 / std::sqrt(squares);
  for (int64_t i = 0; i < dim; ++i) row[i] *= inverse_norm;
  return inverse_norm;
}

}  // namespace

void Token::lay_out(Ledger* ledger, const Problem& p) {
  q = ledger->take<double>(p.dim_k);
  k = ledger->take<double>(p.dim_k);
  v = ledger->take<double>(p.dim_v);
  decay = ledger->take<double>(p.dim_k);
  error = ledger->take<double>(p.dim_v);
  u = ledger->take<double>(p.dim_v);
  gate = ledger->take<GateValue>(p.dim_k);
}

void Token::read(const Problem& p, const linattn_args& args, int64_t b, int64_t t, int64_t hv) {
  const int64_t h = hv / p.group();
  q_inverse_norm = read_row(p.q, args.q, b, t, h, p.dim_k, p.qk_norm, q);
  k_inverse_norm = read_row(p.k, args.k, b, t, h, p.dim_k, p.qk_norm, k);
  read_row(p.v, args.v, b, t, hv, p.dim_v, false, v);
  for (int64_t i = 0; i < p.dim_k; ++i) {
    gate[i] = i == 0 || p.gate == Gate::channel ? gate_value(p, args, b, t, hv, i) : gate[0];
    decay[i] = std::exp(gate[i].g);
  }
  beta = p.beta.present() ? load_element(p.beta.type, args.beta, p.beta.at(b, t, hv)) : 1;
  beta_by_logit = 1;
  if (p.beta.present() && p.beta_form != BetaForm::value) {
    const double top = p.beta_form == BetaForm::sigmoid2 ? 2 : 1;
    beta_by_logit = top * sigmoid(beta) * sigmoid(-beta);
    beta = top * sigmoid(beta);
  }
}

void Token::decay_and_solve(const Problem& p, double* S) {
  for (int64_t j = 0; j < p.dim_v; ++j) error[j] = v[j];
  for (int64_t i = 0; i < p.dim_k; ++i)
    for (int64_t j = 0; j < p.dim_v; ++j) {
      S[i * p.dim_v + j] *= decay[i];
      error[j] -= S[i * p.dim_v + j] * k[i];
    }
  for (int64_t j = 0; j < p.dim_v; ++j) u[j] = p.update == Update::delta ? beta * error[j] : v[j];
}

void Token::write(const Problem& p, double* S) const {
  for (int64_t i = 0; i < p.dim_k; ++i)
    for (int64_t j = 0; j < p.dim_v; ++j) S[i * p.dim_v + j] += k[i] * u[j];
}

void StatePlace::load(const Problem& p, int64_t hv, double* S) const {
  for (int64_t i = 0; i < p.dim_k; ++i)
    for (int64_t j = 0; j < p.dim_v; ++j)
      S[i * p.dim_v + j] = n < 0 ? 0 : load_element(view.type, data, view.at(n, hv, i, j));
}

void StatePlace::store(const Problem& p, int64_t hv, const double* S) const {
  if (n < 0) return;
  for (int64_t i = 0; i < p.dim_k; ++i)
    for (int64_t j = 0; j < p.dim_v; ++j)
      store_element(view.type, data, view.at(n, hv, i, j), S[i * p.dim_v + j]);
}

void StatePlace::copy_from(const StatePlace& from, const Problem& p, int64_t hv) const {
  if (n < 0) return;
  const int64_t bytes = size_of(view.type);
  for (int64_t i = 0; i < p.dim_k; ++i)
    for (int64_t j = 0; j < p.dim_v; ++j) {
      const int64_t to = view.at(n, hv, i, j);
      const int64_t at = from.n < 0 ? 0 : from.view.at(from.n, hv, i, j);
      if (from.n >= 0 && from.view.type == view.type)
        std::memmove(static_cast<char*>(data) + to * bytes,
                     static_cast<const char*>(from.data) + at * bytes, static_cast<size_t>(bytes));
      else
        store_element(view.type, data, to,
                      from.n < 0 ? 0 : load_element(from.view.type, from.data, at));
    }
}

StatePlace start_place(const Problem& p, const linattn_args& args, int64_t sequence, int64_t slot) {
  const int64_t n = !starts_from_state(p, args, sequence) ? -1 : p.pool() ? slot : sequence;
  return {p.initial_state, args.initial_state, n};
}

void zero_unowned_rows(const Problem& p, const linattn_args& args, const TokenView& view,
                       void* data, int64_t heads, int64_t dim) {
  if (!view.present() || !p.varlen()) return;
  const int64_t owned =
      read_index(p.cu_seqlens.type, args.cu_seqlens, p.num_sequences * p.cu_seqlens.n);
  for (int64_t t = owned; t < p.num_tokens; ++t)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t d = 0; d < dim; ++d) store_element(view.type, data, view.at(0, t, h, d), 0);
}

}  // namespace linattn::reference
