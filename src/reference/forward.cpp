// Forward, chunk and recurrent alike: one task is one value head of one sequence.
#include <algorithm>

#include "core/thread_pool.h"
#include "recurrence/element.h"
#include "reference/reference.h"
#include "reference/token.h"

namespace linattn::reference {
namespace {

struct Scratch {
  Token token;
  double* S;  // [K,V]
  double* o;  // [V]

  Scratch(Ledger* ledger, const Problem& p) {
    token.lay_out(ledger, p);
    S = ledger->take<double>(p.dim_k * p.dim_v);
    o = ledger->take<double>(p.dim_v);
  }
};

void zero_outputs(const Problem& p, const linattn_args& args, const TokenRange& range, int64_t hv) {
  for (int64_t t = range.begin; t < range.end; ++t)
    for (int64_t j = 0; j < p.dim_v; ++j)
      store_element(p.o.type, args.o, p.o.at(range.batch, t, hv, j), 0);
}

StatePlace intermediate_place(const Problem& p, const linattn_args& args, int64_t batch,
                              int64_t row) {
  char* data = static_cast<char*>(args.intermediate_states) +
               row * p.intermediate_states.r * size_of(p.intermediate_states.type);
  return {p.intermediate_states, data, batch};
}

// A varlen call has room for more rows than its sequences fill, and dead rows fill none.
void zero_intermediate_states(const Problem& p, const linattn_args& args) {
  if (!p.intermediate_states.present()) return;
  const StatePlace zeros{p.initial_state, nullptr, -1};
  for (int64_t b = 0; b < p.batch; ++b)
    for (int64_t row = 0; row < p.intermediate_rows; ++row)
      for (int64_t hv = 0; hv < p.heads_v; ++hv)
        intermediate_place(p, args, b, row).copy_from(zeros, p, hv);
}

void run_head(const Problem& p, const linattn_args& args, int64_t sequence, int64_t hv, Scratch s) {
  const TokenRange range = token_range(p, args.cu_seqlens, sequence);
  const int64_t slot = p.pool() ? start_slot(p, args, sequence) : 0;
  if (slot < 0) return zero_outputs(p, args, range, hv);

  const StatePlace start = start_place(p, args, sequence, slot);
  start.load(p, hv, s.S);
  const int64_t first_row =
      p.intermediate_states.present() ? intermediate_row_begin(p, args.cu_seqlens, sequence) : 0;
  for (int64_t t = 0; t < range.length(); ++t) {
    if (p.intermediate_states.present() && t % p.state_every == 0)
      intermediate_place(p, args, range.batch, first_row + t / p.state_every).store(p, hv, s.S);

    s.token.read(p, args, range.batch, range.begin + t, hv);
    s.token.decay_and_solve(p, s.S);
    s.token.write(p, s.S);
    std::fill_n(s.o, p.dim_v, 0.0);
    for (int64_t i = 0; i < p.dim_k; ++i)
      for (int64_t j = 0; j < p.dim_v; ++j) s.o[j] += s.S[i * p.dim_v + j] * s.token.q[i];
    for (int64_t j = 0; j < p.dim_v; ++j)
      store_element(p.o.type, args.o, p.o.at(range.batch, range.begin + t, hv, j),
                    p.scale * s.o[j]);

    if (p.state_columns > 0)
      StatePlace{p.initial_state, args.initial_state, target_slot(p, args, sequence, t)}.store(
          p, hv, s.S);
  }
  if (p.state_columns > 0) return;
  const StatePlace end =
      p.pool()
          ? StatePlace{p.initial_state, args.initial_state, target_slot(p, args, sequence, 0)}
          : StatePlace{p.final_state, args.final_state, p.final_state.present() ? sequence : -1};
  if (range.length() > 0)
    end.store(p, hv, s.S);
  else
    end.copy_from(start, p, hv);
}

std::string reject(const Problem&, const DeviceFacts&) { return ""; }

int threads_for(const Plan& plan) {
  return static_cast<int>(std::clamp<int64_t>(plan.problem.num_sequences * plan.problem.heads_v, 1,
                                              std::max(1, plan.facts.threads)));
}

void plan_forward(Plan* plan) {
  const Problem& p = plan->problem;
  Ledger ledger;
  Scratch(&ledger, p);
  plan->config[0] = ledger.bytes();
  plan->workspace_bytes = ledger.bytes() * threads_for(*plan);
  const bool chunk = p.form == Form::chunk;
  plan->launches.push_back({chunk ? "chunk_forward_reference" : "recurrent_forward_reference",
                            {p.num_sequences * p.heads_v, 1, 1},
                            1});
}

Status run_forward(const Plan& plan, const linattn_args& args, void*) {
  const Problem& p = plan.problem;
  zero_unowned_rows(p, args, p.o, args.o, p.heads_v, p.dim_v);
  zero_intermediate_states(p, args);
  parallel_for(p.num_sequences * p.heads_v, threads_for(plan), [&](int64_t task, int thread) {
    Ledger ledger(static_cast<char*>(args.workspace) + thread * plan.config[0]);
    run_head(p, args, task / p.heads_v, task % p.heads_v, Scratch(&ledger, p));
  });
  return LINATTN_OK;
}

}  // namespace

const Implementation chunk_forward{"reference", LINATTN_DEVICE_CPU, reject, plan_forward,
                                   run_forward};
const Implementation recurrent_forward{"reference", LINATTN_DEVICE_CPU, reject, plan_forward,
                                       run_forward};

}  // namespace linattn::reference
