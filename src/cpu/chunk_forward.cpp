// Chunk forward of every family. A chain is one value head of one sequence; its chunks are made
// into records, which do not depend on the state, and the state steps over them in order.
//
// Columns of V never meet, so where chains alone would leave threads idle the long ones are cut
// into slices of V. Each slice makes the records anew: on cores without a common cache, to fetch
// what another core has just written takes longer. Cutting the sequence instead (composing the
// affine maps of its segments) would cost a second pass and round differently with every number of
// threads; a slice computes the very bits of the whole.
#include <algorithm>
#include <functional>

#include "core/thread_pool.h"
#include "cpu/chunk_record.h"
#include "cpu/cpu.h"
#include "cpu/outputs.h"
#include "recurrence/sequences.h"

namespace linattn::cpu {
namespace {

constexpr int64_t kThreadFlops = 500'000;  // worth waking a thread for
constexpr int64_t kSliceColumns = 32;      // a panel of the widest target
constexpr int64_t kRecordColumns = 48;     // of V that take as long as the making of a record
constexpr int kMostBalancedThreads = 128;  // beyond, the search for a balance costs too much

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Chain {
  int64_t sequence, head;
  TokenRange range;
};

// Sizes of a call's scratch: a function of the plan alone.
struct Layout {
  ChunkShape shape;
  int threads;
  int64_t thread_bytes, bytes;
  bool ordered, numbered;  // varlen: sequences by length; first rows of intermediate states
};

// Which chains are cut: those of the `sequences` longest, into slices of `width` columns.
struct Cut {
  int64_t sequences = 0, width = 0;
};

struct ThreadBlock {
  StepScratch scratch;
  Record record;
  float* s;

  void lay_out(Ledger* ledger, const Problem& p, const ChunkShape& shape) {
    scratch.lay_out(ledger, p, shape);
    record.lay_out(ledger, p, shape);
    s = ledger->take<float>(p.dim_k * shape.ld_v);
  }
};

struct Tables {
  int32_t* order;
  int64_t* first_row;

  void lay_out(Ledger* ledger, const Problem& p, const Layout& l) {
    order = l.ordered ? ledger->take<int32_t>(p.num_sequences) : nullptr;
    first_row = l.numbered ? ledger->take<int64_t>(p.num_sequences) : nullptr;
  }
};

Layout make_layout(const Plan& plan) {
  const Problem& p = plan.problem;
  Layout l{};
  l.shape = ChunkShape(p, std::clamp<int64_t>(p.num_tokens, 1, chunk_tokens(p.gate)));
  const int64_t chains = p.num_sequences * p.heads_v;
  const double flops = 6.0 * static_cast<double>(p.batch * p.num_tokens * p.heads_v) *
                       static_cast<double>(p.dim_k * p.dim_v);
  const int64_t useful =
      std::min(chains * ceil_div(p.dim_v, kSliceColumns),
               static_cast<int64_t>(flops / static_cast<double>(kThreadFlops)) + 1);
  l.threads = static_cast<int>(std::clamp<int64_t>(useful, 1, std::max(1, plan.facts.threads)));
  Ledger thread, tables;
  ThreadBlock().lay_out(&thread, p, l.shape);
  l.thread_bytes = thread.bytes();
  l.ordered = p.varlen() && l.threads > 1;
  l.numbered = p.varlen() && p.intermediate_states.present();
  Tables().lay_out(&tables, p, l);
  l.bytes = tables.bytes() + l.threads * l.thread_bytes;
  return l;
}

class Forward {
 public:
  Forward(const Plan& plan, const linattn_args& args)
      : p_(plan.problem), args_(args), l_(make_layout(plan)) {
    Ledger ledger(args.workspace);
    tables_.lay_out(&ledger, p_, l_);
    blocks_ = static_cast<char*>(args.workspace) + ledger.bytes();
  }

  void run() {
    zero_unowned_tokens(p_, args_, p_.o, args_.o, p_.heads_v, p_.dim_v);
    if (l_.numbered) number_rows();
    if (l_.ordered) order_sequences();
    const Cut cut = l_.threads == 1 ? Cut() : choose_cut();
    const int64_t cut_chains = cut.sequences * p_.heads_v;
    const int64_t slices = cut_chains == 0 ? 1 : ceil_div(p_.dim_v, cut.width);
    const int64_t whole = p_.num_sequences * p_.heads_v - cut_chains;
    parallel_for(cut_chains * slices + whole, l_.threads, [&](int64_t task, int thread) {
      const int64_t index = task - cut_chains * slices;
      if (index >= 0) return run_chain(chain(cut_chains + index), 0, p_.dim_v, block(thread));
      const int64_t column = task % slices * cut.width;
      run_chain(chain(task / slices), column, std::min(cut.width, p_.dim_v - column),
                block(thread));
    });
  }

 private:
  ThreadBlock block(int64_t thread) const {
    Ledger ledger(blocks_ + thread * l_.thread_bytes);
    ThreadBlock block;
    block.lay_out(&ledger, p_, l_.shape);
    return block;
  }

  int64_t length(int64_t sequence) const {
    return token_range(p_, args_.cu_seqlens, sequence).length();
  }

  // Chains in the order in which they run: longest first.
  Chain chain(int64_t index) const {
    const int64_t n = index / p_.heads_v;
    const int64_t sequence = l_.ordered ? tables_.order[n] : n;
    return {sequence, index % p_.heads_v, token_range(p_, args_.cu_seqlens, sequence)};
  }

  void number_rows() {
    int64_t row = 0;
    for (int64_t n = 0; n < p_.num_sequences; ++n) {
      tables_.first_row[n] = row;
      row += ceil_div(length(n), p_.state_every);
    }
    for (int64_t head = 0; head < p_.heads_v; ++head)
      zero_intermediate_rows(p_, args_, 0, row, p_.intermediate_rows, head);
  }

  void order_sequences() {
    for (int64_t n = 0; n < p_.num_sequences; ++n) tables_.order[n] = static_cast<int32_t>(n);
    std::sort(tables_.order, tables_.order + p_.num_sequences, [&](int32_t a, int32_t b) {
      const int64_t x = length(a), y = length(b);
      return x != y ? x > y : a < b;
    });
  }

  // The cut after which the thread with the most work is done first. A long sequence is one that
  // takes more than half of what a thread should.
  Cut choose_cut() const {
    const int64_t chains = p_.num_sequences * p_.heads_v;
    if (chains >= 8 * l_.threads || l_.threads > kMostBalancedThreads) return {};
    int64_t total = 0;
    for (int64_t i = 0; i < chains; ++i) total += chain(i).range.length();
    int64_t sequences = 0;
    while (sequences < p_.num_sequences &&
           2 * length(chain(sequences * p_.heads_v).sequence) * l_.threads > total)
      ++sequences;
    const int64_t units = ceil_div(p_.dim_v, kSliceColumns);
    Cut best;
    int64_t least = longest_thread(0, p_.dim_v);
    for (int64_t slices = 2; slices <= units && sequences > 0; ++slices) {
      const int64_t width = ceil_div(units, slices) * kSliceColumns;
      const int64_t cost = longest_thread(sequences * p_.heads_v, width);
      if (100 * cost < 95 * least) least = cost, best = {sequences, width};
    }
    return best;
  }

  // Work of the thread with the most, tasks going to whoever is free.
  int64_t longest_thread(int64_t cut_chains, int64_t width) const {
    int64_t load[kMostBalancedThreads] = {};
    int64_t* end = load + l_.threads;
    const auto add = [&](int64_t work) {
      std::pop_heap(load, end, std::greater<>());
      end[-1] += work;
      std::push_heap(load, end, std::greater<>());
    };
    for (int64_t i = 0; i < p_.num_sequences * p_.heads_v; ++i) {
      const int64_t tokens = chain(i).range.length(), step = i < cut_chains ? width : p_.dim_v;
      for (int64_t column = 0; column < p_.dim_v; column += step)
        add(tokens * (kRecordColumns + std::min(step, p_.dim_v - column)));
    }
    return *std::max_element(load, end);
  }

  // What the sequence starts from: null data without a state.
  StatePlace start(const Chain& c, int64_t column, int64_t columns) const {
    if (!starts_from_state(p_, args_, c.sequence)) return {nullptr, nullptr, column, columns};
    const int64_t n = p_.pool() ? start_slot(p_, args_, c.sequence) : c.sequence;
    return state_place(p_.initial_state, args_.initial_state, n, 0, c.head, column, columns);
  }

  StatePlace end(const Chain& c, int64_t column, int64_t columns) const {
    const StateView& view = p_.pool() ? p_.initial_state : p_.final_state;
    const int64_t n = p_.pool() ? target_slot(p_, args_, c.sequence, 0) : c.sequence;
    if (!view.present() || n < 0) return {nullptr, nullptr, column, columns};
    return state_place(view, p_.pool() ? args_.initial_state : args_.final_state, n, 0, c.head,
                       column, columns);
  }

  int64_t first_row(const Chain& c) const {
    return l_.numbered ? tables_.first_row[c.sequence] : 0;
  }

  bool is_dead(const Chain& c) const { return p_.pool() && start_slot(p_, args_, c.sequence) < 0; }

  int64_t chunks(const Chain& c) const {
    return is_dead(c) ? 0 : ceil_div(c.range.length(), l_.shape.chunk);
  }

  ChunkPlace place(const Chain& c, int64_t chunk) const {
    const int64_t first = c.range.begin + chunk * l_.shape.chunk;
    return {c.range.batch, first, std::min(l_.shape.chunk, c.range.end - first), c.head};
  }

  void step(const Chain& c, int64_t chunk, const ThreadBlock& b, int64_t column,
            int64_t columns) const {
    const int64_t token = chunk * l_.shape.chunk;
    if (p_.intermediate_states.present() && token % p_.state_every == 0)
      store_state(state_place(p_.intermediate_states, args_.intermediate_states, c.range.batch,
                              first_row(c) + token / p_.state_every, c.head, column, columns),
                  p_.dim_k, b.s, l_.shape.ld_v, b.scratch.state);
    const bool last = chunk + 1 == chunks(c);
    const ChunkPlace next = place(c, last ? chunk : chunk + 1);
    step_over(p_, args_, l_.shape, place(c, chunk), b.record, b.scratch, b.s, column, columns,
              last ? nullptr : &next);
  }

  void run_dead(const Chain& c) const {
    zero_tokens(p_.o, args_.o, c.range.batch, c.range.begin, c.range.end, c.head, p_.dim_v);
    if (p_.intermediate_states.present())
      zero_intermediate_rows(p_, args_, c.range.batch, first_row(c),
                             first_row(c) + ceil_div(c.range.length(), p_.state_every), c.head);
  }

  void run_chain(const Chain& c, int64_t column, int64_t columns, const ThreadBlock& b) const {
    if (is_dead(c)) {
      if (column == 0) run_dead(c);
      return;
    }
    const FlushDenormals flush;
    const StatePlace from = start(c, column, columns), to = end(c, column, columns);
    if (c.range.length() == 0)
      return pass_state(from, to, p_.dim_k, b.s, l_.shape.ld_v, b.scratch.state);
    load_state(from, p_.dim_k, b.s, l_.shape.ld_v, b.scratch.state);
    for (int64_t i = 0; i < chunks(c); ++i) {
      make_record(p_, args_, l_.shape, place(c, i), b.record, b.scratch);
      step(c, i, b, column, columns);
    }
    store_state(to, p_.dim_k, b.s, l_.shape.ld_v, b.scratch.state);
  }

  const Problem& p_;
  const linattn_args& args_;
  const Layout l_;
  Tables tables_;
  char* blocks_;
};

std::string reject(const Problem&, const DeviceFacts&) { return ""; }

void plan_forward(Plan* plan) {
  const Layout l = make_layout(*plan);
  plan->workspace_bytes = l.bytes;
  plan->launches.push_back({"chunk_forward_cpu",
                            {plan->problem.num_sequences * plan->problem.heads_v, 1, 1},
                            l.threads});
}

Status run_forward(const Plan& plan, const linattn_args& args, void*) {
  Forward(plan, args).run();
  return LINATTN_OK;
}

}  // namespace

const Implementation chunk_forward{"cpu", LINATTN_DEVICE_CPU, reject, plan_forward, run_forward};

}  // namespace linattn::cpu
