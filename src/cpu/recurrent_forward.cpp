// Recurrent forward and decode. One token of a sequence whose state lies in rows is worked in the
// caller's memory, one read and one write of it. More tokens, or a state that must change type or
// has strides of its own, go through fp32 scratch, one slice of V at a time so that it stays in the
// first-level cache. Scratch keeps the layout of the states, so both ways give the same bits.
#include <algorithm>

#include "core/thread_pool.h"
#include "cpu/cpu.h"
#include "cpu/inputs.h"
#include "cpu/outputs.h"
#include "cpu/states.h"
#include "recurrence/sequences.h"

namespace linattn::cpu {
namespace {

constexpr int64_t kTokensAtOnce = 16;         // whose inputs are made together
constexpr int64_t kSliceColumns = 32;         // of scratch state, and the least part of a task
constexpr int64_t kThreadBytes = 128 * 1024;  // of state traffic, worth waking a thread for
constexpr int64_t kMostChains = 16;           // of a task

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Layout {
  int64_t tokens = 0, ld_k = 0, ld_v = 0;
  int threads = 0;
  int64_t slices = 0, slice_width = 0;  // parts of a state that are tasks of their own
  int64_t chains = 0;  // of a task, neighbours in memory: each asks for the lines of the next
  int64_t thread_bytes = 0;
};

struct Scratch {
  float *kq, *g, *bias, *beta, *v, *o, *s, *state;

  void lay_out(Ledger* ledger, const Problem& p, const Layout& l) {
    kq = ledger->take<float>(l.tokens * 2 * l.ld_k);
    g = ledger->take<float>(l.tokens * l.ld_k);
    bias = ledger->take<float>(std::max(l.ld_k, padded(l.tokens)));
    beta = ledger->take<float>(padded(l.tokens));
    v = ledger->take<float>(l.tokens * l.ld_v);
    o = ledger->take<float>(l.ld_v);
    s = ledger->take<float>(std::max(p.dim_k * l.ld_v, p.dim_v * l.ld_k));
    state = ledger->take<float>(state_work(p.dim_k));
  }
};

Layout make_layout(const Plan& plan) {
  const Problem& p = plan.problem;
  Layout l;
  l.tokens = std::clamp<int64_t>(p.num_tokens, 1, kTokensAtOnce);
  l.ld_k = leading(p.dim_k), l.ld_v = leading(p.dim_v);
  const int64_t chains = p.num_sequences * p.heads_v;
  const int64_t traffic =
      std::max<int64_t>(p.batch * p.num_tokens * p.heads_v, 1) * p.dim_k * p.dim_v * 4;
  const int64_t useful = traffic / kThreadBytes + 1;
  const int64_t parts = ceil_div(p.dim_v, kSliceColumns);
  l.threads = static_cast<int>(
      std::clamp<int64_t>(std::min(useful, chains * parts), 1, std::max(1, plan.facts.threads)));
  const int64_t wanted =
      chains >= 4 * l.threads ? 1 : ceil_div(4 * l.threads, std::max<int64_t>(chains, 1));
  l.slice_width = ceil_div(parts, l.threads == 1 ? 1 : std::min(wanted, parts)) * kSliceColumns;
  l.slices = ceil_div(p.dim_v, l.slice_width);
  l.chains = std::clamp<int64_t>(chains / (8 * l.threads), 1, kMostChains);
  Ledger ledger;
  Scratch().lay_out(&ledger, p, l);
  l.thread_bytes = ledger.bytes();
  return l;
}

class Recurrent {
 public:
  Recurrent(const Plan& plan, const linattn_args& args)
      : p_(plan.problem), args_(args), l_(make_layout(plan)) {}

  void run() {
    zero_unowned_tokens(p_, args_, p_.o, args_.o, p_.heads_v, p_.dim_v);
    const int64_t parts = p_.num_sequences * p_.heads_v * l_.slices;
    parallel_for(ceil_div(parts, l_.chains), l_.threads, [&](int64_t task, int thread) {
      const int64_t end = std::min(parts, (task + 1) * l_.chains);
      for (int64_t part = task * l_.chains; part < end; ++part) run_part(part, thread);
    });
  }

 private:
  void run_part(int64_t part, int thread) const {
    const int64_t column = part % l_.slices * l_.slice_width, chain = part / l_.slices;
    Task t{this, chain / p_.heads_v, chain % p_.heads_v, column,
           std::min(l_.slice_width, p_.dim_v - column)};
    Ledger ledger(static_cast<char*>(args_.workspace) + thread * l_.thread_bytes);
    Scratch scratch;
    scratch.lay_out(&ledger, p_, l_);
    const FlushDenormals flush;
    t.run(scratch);
  }

  // A slice of V of one value head of one sequence.
  struct Task {
    const Recurrent* call;
    int64_t sequence, head, column, columns;
    const Problem& p = call->p_;
    const linattn_args& args = call->args_;
    const Layout& l = call->l_;
    TokenRange range = token_range(p, args.cu_seqlens, sequence);

    StatePlace place(const StateView& view, const void* data, int64_t n) const {
      if (!view.present() || n < 0) return {nullptr, nullptr, column, columns};
      return state_place(view, data, n, 0, head, column, columns);
    }

    // Where the state after token j goes, or with 1-D indices and final states that of the last.
    StatePlace target(int64_t j) const {
      return p.pool()
                 ? place(p.initial_state, args.initial_state, target_slot(p, args, sequence, j))
                 : place(p.final_state, args.final_state, sequence);
    }

    void run(const Scratch& s) const {
      const int64_t slot = p.pool() ? start_slot(p, args, sequence) : sequence;
      if (slot < 0) return zero_outputs();
      const StatePlace start = place(p.initial_state, args.initial_state,
                                     starts_from_state(p, args, sequence) ? slot : -1);
      if (range.length() == 0) {
        if (p.state_columns == 0) pass_state(start, target(0), p.dim_k, s.s, l.ld_v, s.state);
        return;
      }
      if (range.length() == 1 && in_rows(start, target(0))) return run_in_place(start, s);
      run_in_scratch(start, s);
    }

    void zero_outputs() const {
      TokenView view = p.o;
      zero_tokens(view, element_at(args.o, view.type, column * view.d), range.batch, range.begin,
                  range.end, head, columns);
    }

    // Whether both are rows of one kind that a step can stream through.
    bool in_rows(const StatePlace& from, const StatePlace& to) const {
      if (from.data == nullptr || to.data == nullptr) return false;
      const StateView &a = *from.view, &b = *to.view;
      if (a.type != b.type) return false;
      return p.state_v_first ? a.k == 1 && b.k == 1 : a.v == 1 && b.v == 1;
    }

    // Rows of scratch: K-first [dim_k, ld_v], V-first [columns, ld_k].
    int64_t ld() const { return p.state_v_first ? l.ld_k : l.ld_v; }

    void load(const StatePlace& from, const Scratch& s) const {
      const int64_t rows = p.state_v_first ? columns : p.dim_k;
      const int64_t wide = p.state_v_first ? p.dim_k : columns;
      if (from.data == nullptr) {
        for (int64_t i = 0; i < rows; ++i) std::fill_n(s.s + i * ld(), padded(wide), 0.0f);
        return;
      }
      const StateView& view = *from.view;
      kernels().load_rows(from.data, element(view.type), p.state_v_first ? view.v : view.k,
                          p.state_v_first ? view.k : view.v, rows, wide, s.s, ld());
    }

    void store(const StatePlace& to, const Scratch& s) const {
      if (to.data == nullptr) return;
      const StateView& view = *to.view;
      kernels().store_rows(s.s, ld(), p.state_v_first ? columns : p.dim_k,
                           p.state_v_first ? p.dim_k : columns, to.data, element(view.type),
                           p.state_v_first ? view.v : view.k, p.state_v_first ? view.k : view.v);
    }

    // Inputs of tokens [first, first + count), decays as factors in s.g.
    void load_inputs(int64_t first, int64_t count, const Scratch& s) const {
      const ChunkPlace at{range.batch, first, count, head};
      load_kq(p, args, at, s.kq, l.ld_k, nullptr);
      load_token_rows(p.v, args.v, at, head, column, columns, s.v, l.ld_v);
      if (p.update == Update::delta) load_beta(p, args, at, s.beta);
      const Kernels& f = kernels();
      if (p.gate == Gate::channel) {
        load_gates(p, args, at, s.g, l.ld_k, s.bias);
        for (int64_t i = 0; i < count; ++i) f.exp(s.g + i * l.ld_k, p.dim_k, s.g + i * l.ld_k);
        return;
      }
      float decay[kTokensAtOnce];
      load_gates(p, args, at, decay, l.ld_k, s.bias);
      if (p.gate == Gate::none)
        std::fill_n(decay, count, 1.0f);
      else
        f.exp(decay, count, decay);
      for (int64_t i = 0; i < count; ++i) std::fill_n(s.g + i * l.ld_k, padded(p.dim_k), decay[i]);
    }

    DecodeStep step(int64_t i, const Scratch& s, int64_t from, int64_t count) const {
      return {.dim_k = p.dim_k,
              .columns = count,
              .delta = p.update == Update::delta,
              .v_first = p.state_v_first,
              .q = s.kq + (2 * i + 1) * l.ld_k,
              .k = s.kq + 2 * i * l.ld_k,
              .decay = s.g + i * l.ld_k,
              .beta = p.update == Update::delta ? s.beta[i] : 1,
              .v = s.v + i * l.ld_v + from,
              .o = s.o + from};
    }

    void store_output(int64_t token, const Scratch& s) const {
      store_token_rows(s.o, l.ld_v, p.o, args.o, {range.batch, token, 1, head}, head, column,
                       columns);
    }

    void run_in_place(const StatePlace& start, const Scratch& s) const {
      const StatePlace to = target(0);
      load_inputs(range.begin, 1, s);
      DecodeStep d = step(0, s, 0, columns);
      d.type = element(start.view->type);
      d.s_in = start.data, d.s_out = to.data;
      d.ld_in = d.v_first ? start.view->v : start.view->k;
      d.ld_out = d.v_first ? to.view->v : to.view->k;
      kernels().decode_step(d);
      store_output(range.begin, s);
    }

    void run_in_scratch(const StatePlace& start, const Scratch& s) const {
      load(start, s);
      for (int64_t first = range.begin; first < range.end; first += l.tokens) {
        const int64_t count = std::min(l.tokens, range.end - first);
        load_inputs(first, count, s);
        // With a target for every token the whole state moves on together.
        const int64_t width = p.state_columns > 0 ? columns : kSliceColumns;
        for (int64_t v = 0; v < columns; v += width)
          for (int64_t i = 0; i < count; ++i) {
            const int64_t wide = std::min(width, columns - v);
            DecodeStep d = step(i, s, v, wide);
            d.type = Element::f32;
            d.s_in = d.s_out = s.s + (p.state_v_first ? v * ld() : v);
            d.ld_in = d.ld_out = ld();
            d.o = s.v + i * l.ld_v + v;  // v is read before o is written
            kernels().decode_step(d);
            if (p.state_columns > 0) store(target(first - range.begin + i), s);
          }
        store_token_rows(s.v, l.ld_v, p.o, args.o, {range.batch, first, count, head}, head, column,
                         columns);
      }
      if (p.state_columns == 0) store(target(0), s);
    }
  };

  const Problem& p_;
  const linattn_args& args_;
  const Layout l_;
};

std::string reject(const Problem&, const DeviceFacts&) { return ""; }

void plan_forward(Plan* plan) {
  const Layout l = make_layout(*plan);
  plan->workspace_bytes = l.threads * l.thread_bytes;
  plan->launches.push_back({"recurrent_forward_cpu",
                            {plan->problem.num_sequences * plan->problem.heads_v * l.slices, 1, 1},
                            l.threads});
}

Status run_forward(const Plan& plan, const linattn_args& args, void*) {
  Recurrent(plan, args).run();
  return LINATTN_OK;
}

}  // namespace

const Implementation recurrent_forward{"cpu", LINATTN_DEVICE_CPU, reject, plan_forward,
                                       run_forward};

}  // namespace linattn::cpu
