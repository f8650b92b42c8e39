// Backward by the reversed recurrence. One task is one q/k head: it owns dq and dk, which sum over
// the head's group of value heads, and dA_log and ddt_bias, which sum over all tokens. States are
// recomputed segment by segment from checkpoints, about sqrt(T) of either.
#include <algorithm>
#include <cmath>

#include "core/thread_pool.h"
#include "recurrence/element.h"
#include "reference/reference.h"
#include "reference/token.h"

namespace linattn::reference {
namespace {

int64_t segment_length(const Problem& p) {
  return std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(p.num_tokens)))));
}

struct Scratch {
  Token token;
  double *S, *dS;                // [K,V]
  double *checkpoints, *states;  // [segments,K,V], [segment,K,V]: states before a token
  double *do_, *du;              // [V]
  double *dq, *dk;               // [T,K], of q and k as the recurrence reads them
  double *dA_log, *ddt_bias;     // [group], [group,K]

  Scratch(Ledger* ledger, const Problem& p) {
    const int64_t state = p.dim_k * p.dim_v, segment = segment_length(p);
    token.lay_out(ledger, p);
    S = ledger->take<double>(state);
    dS = ledger->take<double>(state);
    checkpoints = ledger->take<double>((p.num_tokens + segment - 1) / segment * state);
    states = ledger->take<double>(segment * state);
    do_ = ledger->take<double>(p.dim_v);
    du = ledger->take<double>(p.dim_v);
    dq = ledger->take<double>(p.num_tokens * p.dim_k);
    dk = ledger->take<double>(p.num_tokens * p.dim_k);
    dA_log = ledger->take<double>(p.group());
    ddt_bias = ledger->take<double>(p.group() * p.dim_k);
  }
};

// A decay of zero has log decay -inf and passes no gradient, whatever the derivative's limit.
double chain(double gradient, double derivative) {
  return gradient == 0 ? 0 : gradient * derivative;
}

// Sd: the decayed state of this token; dS: gradient of the state after it, becomes that of the
// state before it. dq and dk are rows of this token.
void token_backward(const Problem& p, const linattn_args& args, int64_t b, int64_t t, int64_t hv,
                    const Scratch& s, const double* Sd, double* dq, double* dk) {
  const Token& x = s.token;
  const bool delta = p.update == Update::delta;
  double u_do = 0, dbeta = 0, dg_head = 0;
  std::fill_n(s.du, p.dim_v, 0.0);
  for (int64_t j = 0; j < p.dim_v; ++j) {
    s.do_[j] = load_element(p.do_.type, args.do_, p.do_.at(b, t, hv, j)) * p.scale;
    u_do += x.u[j] * s.do_[j];
  }
  for (int64_t i = 0; i < p.dim_k; ++i) {
    double dq_i = x.k[i] * u_do, dk_i = 0;
    for (int64_t j = 0; j < p.dim_v; ++j) {
      double& dS = s.dS[i * p.dim_v + j];
      dq_i += Sd[i * p.dim_v + j] * s.do_[j];  // o = scale (Sd + k u^T)^T q
      dS += x.q[i] * s.do_[j];
      dk_i += dS * x.u[j];  // S = Sd + k u^T
      s.du[j] += dS * x.k[i];
    }
    dq[i] += dq_i;
    dk[i] += dk_i;
  }
  for (int64_t j = 0; j < p.dim_v; ++j) {
    dbeta += s.du[j] * x.error[j];  // u = beta error
    if (delta) s.du[j] *= x.beta;   // now the gradient of error = v - Sd^T k, so of v
    store_element(p.dv.type, args.dv, p.dv.at(b, t, hv, j), s.du[j]);
  }
  store_element(p.dbeta.type, args.dbeta, p.dbeta.at(b, t, hv), dbeta * x.beta_by_logit);

  const int64_t member = hv % p.group();
  for (int64_t i = 0; i < p.dim_k; ++i) {
    double dg = 0, dk_i = 0;
    for (int64_t j = 0; j < p.dim_v; ++j) {
      double& dS = s.dS[i * p.dim_v + j];
      if (delta) {
        dk_i -= Sd[i * p.dim_v + j] * s.du[j];
        dS -= x.k[i] * s.du[j];
      }
      dg += dS * Sd[i * p.dim_v + j];  // Sd = exp(g) S
      dS *= x.decay[i];
    }
    dk[i] += dk_i;
    const double dgate = chain(dg, x.gate[i].by_gate);
    s.dA_log[member] += chain(dg, x.gate[i].by_A_log);
    s.ddt_bias[member * p.dim_k + (p.gate == Gate::channel ? i : 0)] += dgate;
    dg_head += dgate;
    if (p.gate == Gate::channel) store_element(p.dg.type, args.dg, p.dg.at(b, t, hv, i), dgate);
  }
  if (p.gate == Gate::head) store_element(p.dg.type, args.dg, p.dg.at(b, t, hv), dg_head);
}

void head_backward(const Problem& p, const linattn_args& args, int64_t sequence, int64_t hv,
                   Scratch& s) {
  const TokenRange range = token_range(p, args.cu_seqlens, sequence);
  const int64_t state = p.dim_k * p.dim_v, segment = segment_length(p);
  start_place(p, args, sequence, 0).load(p, hv, s.S);
  for (int64_t t = 0; t < range.length(); ++t) {
    if (t % segment == 0) std::copy_n(s.S, state, s.checkpoints + t / segment * state);
    s.token.read(p, args, range.batch, range.begin + t, hv);
    s.token.decay_and_solve(p, s.S);
    s.token.write(p, s.S);
  }
  StatePlace{p.dht, const_cast<void*>(args.dht), p.dht.present() ? sequence : -1}.load(p, hv, s.dS);
  for (int64_t end = range.length(); end > 0;) {
    const int64_t begin = (end - 1) / segment * segment;
    std::copy_n(s.checkpoints + begin / segment * state, state, s.S);
    for (int64_t t = begin; t < end; ++t) {
      std::copy_n(s.S, state, s.states + (t - begin) * state);
      s.token.read(p, args, range.batch, range.begin + t, hv);
      s.token.decay_and_solve(p, s.S);
      s.token.write(p, s.S);
    }
    for (int64_t t = end - 1; t >= begin; --t) {
      double* S = s.states + (t - begin) * state;
      s.token.read(p, args, range.batch, range.begin + t, hv);
      s.token.decay_and_solve(p, S);
      token_backward(p, args, range.batch, range.begin + t, hv, s, S, s.dq + t * p.dim_k,
                     s.dk + t * p.dim_k);
    }
    end = begin;
  }
  StatePlace{p.dh0, args.dh0, p.dh0.present() ? sequence : -1}.store(p, hv, s.dS);
}

// y = x / sqrt(x.x + eps): dx = (dy - y (y.dy)) / sqrt(x.x + eps)
void store_through_norm(const Problem& p, const TokenView& view, void* data, int64_t b, int64_t t,
                        int64_t h, const double* y, double inverse_norm, const double* dy) {
  double along = 0;
  for (int64_t i = 0; i < p.dim_k; ++i) along += p.qk_norm ? y[i] * dy[i] : 0;
  for (int64_t i = 0; i < p.dim_k; ++i)
    store_element(view.type, data, view.at(b, t, h, i), inverse_norm * (dy[i] - y[i] * along));
}

void qk_head_backward(const Problem& p, const linattn_args& args, int64_t h, Scratch s) {
  std::fill_n(s.dA_log, p.group(), 0.0);
  std::fill_n(s.ddt_bias, p.group() * p.dim_k, 0.0);
  const int64_t first_hv = h * p.group();
  for (int64_t sequence = 0; sequence < p.num_sequences; ++sequence) {
    const TokenRange range = token_range(p, args.cu_seqlens, sequence);
    std::fill_n(s.dq, range.length() * p.dim_k, 0.0);
    std::fill_n(s.dk, range.length() * p.dim_k, 0.0);
    for (int64_t hv = first_hv; hv < first_hv + p.group(); ++hv)
      head_backward(p, args, sequence, hv, s);
    for (int64_t t = 0; t < range.length(); ++t) {
      s.token.read(p, args, range.batch, range.begin + t, first_hv);
      store_through_norm(p, p.dq, args.dq, range.batch, range.begin + t, h, s.token.q,
                         s.token.q_inverse_norm, s.dq + t * p.dim_k);
      store_through_norm(p, p.dk, args.dk, range.batch, range.begin + t, h, s.token.k,
                         s.token.k_inverse_norm, s.dk + t * p.dim_k);
    }
  }
  for (int64_t member = 0; member < p.group(); ++member) {
    const int64_t hv = first_hv + member;
    store_element(p.dA_log.type, args.dA_log, hv * p.dA_log.h, s.dA_log[member]);
    for (int64_t i = 0; i < (p.gate == Gate::channel ? p.dim_k : 1); ++i)
      store_element(p.ddt_bias.type, args.ddt_bias, hv * p.ddt_bias.h + i * p.ddt_bias.k,
                    s.ddt_bias[member * p.dim_k + i]);
  }
}

std::string reject(const Problem&, const DeviceFacts&) { return ""; }

int threads_for(const Plan& plan) {
  return static_cast<int>(
      std::clamp<int64_t>(plan.problem.heads_qk, 1, std::max(1, plan.facts.threads)));
}

void plan_backward(Plan* plan) {
  Ledger ledger;
  Scratch(&ledger, plan->problem);
  plan->config[0] = ledger.bytes();
  plan->workspace_bytes = ledger.bytes() * threads_for(*plan);
  plan->launches.push_back({"chunk_backward_reference", {plan->problem.heads_qk, 1, 1}, 1});
}

Status run_backward(const Plan& plan, const linattn_args& args, void*) {
  const Problem& p = plan.problem;
  const int64_t gate_dim = p.gate == Gate::channel ? p.dim_k : 1;
  zero_unowned_rows(p, args, p.dq, args.dq, p.heads_qk, p.dim_k);
  zero_unowned_rows(p, args, p.dk, args.dk, p.heads_qk, p.dim_k);
  zero_unowned_rows(p, args, p.dv, args.dv, p.heads_v, p.dim_v);
  zero_unowned_rows(p, args, p.dg, args.dg, p.heads_v, gate_dim);
  zero_unowned_rows(p, args, p.dbeta, args.dbeta, p.heads_v, 1);
  parallel_for(p.heads_qk, threads_for(plan), [&](int64_t h, int thread) {
    Ledger ledger(static_cast<char*>(args.workspace) + thread * plan.config[0]);
    qk_head_backward(p, args, h, Scratch(&ledger, p));
  });
  return LINATTN_OK;
}

}  // namespace

const Implementation backward{"reference", LINATTN_DEVICE_CPU, reject, plan_backward, run_backward};

}  // namespace linattn::reference
