// Chunk forward of every family. A chain is one value head of one sequence; its chunks are made
// into records, which do not depend on the state, and the state steps over them in order.
//
// Columns of V never meet, so where there are fewer chains than threads each chain's state is cut
// into slices of V, and the threads share the making of its records. Cutting the sequence instead
// (composing the affine maps of its segments) would cost a second pass and round differently with
// every number of threads; a slice computes the very bits of the whole.
#include <algorithm>

#include "core/thread_pool.h"
#include "cpu/chunk_record.h"
#include "cpu/cpu.h"
#include "cpu/outputs.h"
#include "recurrence/sequences.h"

namespace linattn::cpu {
namespace {

constexpr int64_t kThreadBudget = int64_t{1} << 20;
constexpr int64_t kMostRecords = 8;        // of one thread
constexpr int64_t kThreadFlops = 500'000;  // worth waking a thread for
constexpr int64_t kSliceColumns = 32;      // a panel of the widest target
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
  int64_t records;  // of one thread
  int64_t record_bytes, thread_bytes, bytes;
  bool ordered, numbered;  // varlen: sequences by length; first rows of intermediate states
};

struct ThreadBlock {
  StepScratch scratch;
  float* s;

  void lay_out(Ledger* ledger, const Problem& p, const ChunkShape& shape) {
    scratch.lay_out(ledger, p, shape);
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
  const int64_t chunks = ceil_div(p.batch * p.num_tokens, l.shape.chunk) * p.heads_v;
  const int64_t pieces = std::max(chains * ceil_div(p.dim_v, kSliceColumns), chunks);
  const int64_t useful = std::min<int64_t>(
      pieces, static_cast<int64_t>(flops / static_cast<double>(kThreadFlops)) + 1);
  l.threads = static_cast<int>(std::clamp<int64_t>(useful, 1, std::max(1, plan.facts.threads)));
  Ledger thread, record, tables;
  ThreadBlock().lay_out(&thread, p, l.shape);
  Record().lay_out(&record, p, l.shape);
  l.record_bytes = record.bytes();
  // Two at least: one is stepped over while the next is made.
  l.records = l.threads == 1
                  ? 1
                  : std::clamp<int64_t>((kThreadBudget - thread.bytes()) / l.record_bytes, 2,
                                        std::max<int64_t>(2, std::min(kMostRecords, chunks)));
  l.thread_bytes = thread.bytes() + l.records * l.record_bytes;
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
    const int64_t split = l_.threads == 1 ? 0 : sequences_to_split() * p_.heads_v;
    for (int64_t i = 0; i < split; i += l_.threads) run_split(i, std::min(split, i + l_.threads));
    parallel_for(p_.num_sequences * p_.heads_v - split, l_.threads,
                 [&](int64_t task, int thread) { run_whole(chain(split + task), thread); });
  }

 private:
  ThreadBlock block(int64_t thread) const {
    Ledger ledger(blocks_ + thread * l_.thread_bytes);
    ThreadBlock block;
    block.lay_out(&ledger, p_, l_.shape);
    return block;
  }

  Record record(int64_t index) const {
    char* end = blocks_ + (index / l_.records + 1) * l_.thread_bytes;
    Ledger ledger(end - (index % l_.records + 1) * l_.record_bytes);
    Record record;
    record.lay_out(&ledger, p_, l_.shape);
    return record;
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

  // How many of the longest sequences are worth cutting into slices.
  int64_t sequences_to_split() const {
    const int64_t chains = p_.num_sequences * p_.heads_v;
    if (chains >= 8 * l_.threads || l_.threads > kMostBalancedThreads) return 0;
    int64_t load[kMostBalancedThreads] = {}, total = 0;
    for (int64_t i = 0; i < chains; ++i) {
      const int64_t tokens = chain(i).range.length();
      *std::min_element(load, load + l_.threads) += tokens;
      total += tokens;
    }
    const int64_t longest = *std::max_element(load, load + l_.threads);
    if (100 * total >= 85 * longest * l_.threads) return 0;
    int64_t n = 0;
    while (n < p_.num_sequences && 2 * length(chain(n * p_.heads_v).sequence) * l_.threads > total)
      ++n;
    return n;
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

  void step(const Chain& c, int64_t chunk, const Record& record, const StepScratch& scratch,
            float* s, int64_t column, int64_t columns) const {
    const int64_t token = chunk * l_.shape.chunk;
    if (p_.intermediate_states.present() && token % p_.state_every == 0)
      store_state(state_place(p_.intermediate_states, args_.intermediate_states, c.range.batch,
                              first_row(c) + token / p_.state_every, c.head, column, columns),
                  p_.dim_k, s, l_.shape.ld_v, scratch.state);
    // Where slices share the chain, others may load what comes next.
    const bool own_next = columns == p_.dim_v && chunk + 1 < chunks(c);
    const ChunkPlace next = place(c, own_next ? chunk + 1 : chunk);
    step_over(p_, args_, l_.shape, place(c, chunk), record, scratch, s, column, columns,
              own_next ? &next : nullptr);
  }

  void run_dead(const Chain& c) const {
    zero_tokens(p_.o, args_.o, c.range.batch, c.range.begin, c.range.end, c.head, p_.dim_v);
    if (p_.intermediate_states.present())
      zero_intermediate_rows(p_, args_, c.range.batch, first_row(c),
                             first_row(c) + ceil_div(c.range.length(), p_.state_every), c.head);
  }

  void run_whole(const Chain& c, int thread) const {
    if (is_dead(c)) return run_dead(c);
    const FlushDenormals flush;
    const ThreadBlock b = block(thread);
    const Record record_of_thread = record(thread * l_.records);
    if (c.range.length() == 0)
      return pass_state(start(c, 0, p_.dim_v), end(c, 0, p_.dim_v), p_.dim_k, b.s, l_.shape.ld_v,
                        b.scratch.state);
    load_state(start(c, 0, p_.dim_v), p_.dim_k, b.s, l_.shape.ld_v, b.scratch.state);
    for (int64_t i = 0; i < chunks(c); ++i) {
      make_record(p_, args_, l_.shape, place(c, i), record_of_thread, b.scratch);
      step(c, i, record_of_thread, b.scratch, b.s, 0, p_.dim_v);
    }
    store_state(end(c, 0, p_.dim_v), p_.dim_k, b.s, l_.shape.ld_v, b.scratch.state);
  }

  // Chains [begin, end), at most one a thread. Each round steps over one group of records, slice by
  // slice, while the next group is made: one half of the records holds each.
  void run_split(int64_t begin, int64_t end_chain) const {
    const int64_t count = end_chain - begin;
    const int64_t group = l_.threads * l_.records / (2 * count);
    int64_t most_chunks = 0;
    for (int64_t i = begin; i < end_chain; ++i) {
      most_chunks = std::max(most_chunks, chunks(chain(i)));
      if (is_dead(chain(i))) run_dead(chain(i));
    }
    const int64_t width = slice_width(count);
    const int64_t slices = ceil_div(p_.dim_v, width);
    const int64_t rounds = ceil_div(most_chunks, group);
    for (int64_t round = 0; round <= rounds; ++round) {
      const int64_t steps = round > 0 ? count * slices : 0;
      const int64_t makes = round < rounds ? count * group : 0;
      parallel_for(steps + makes, l_.threads, [&](int64_t task, int thread) {
        const FlushDenormals flush;
        const StepScratch scratch = block(thread).scratch;
        if (task < steps) {
          const int64_t slot = task / slices, column = task % slices * width;
          step_group(chain(begin + slot), block(slot).s, scratch, round - 1, group, slot * group,
                     count * group, column, std::min(width, p_.dim_v - column));
          return;
        }
        const int64_t slot = (task - steps) / group, j = (task - steps) % group;
        const Chain c = chain(begin + slot);
        const int64_t chunk = round * group + j;
        if (chunk < chunks(c))
          make_record(p_, args_, l_.shape, place(c, chunk),
                      record(round % 2 * count * group + slot * group + j), scratch);
      });
    }
  }

  void step_group(const Chain& c, float* state, const StepScratch& scratch, int64_t round,
                  int64_t group, int64_t first_record, int64_t half, int64_t column,
                  int64_t columns) const {
    if (is_dead(c)) return;  // it has no state to start from, and run_dead has written its outputs
    const int64_t total = chunks(c), first = round * group;
    const int64_t last = std::min(total, first + group);
    float* s = state + column;
    if (round == 0)
      load_state(start(c, column, columns), p_.dim_k, s, l_.shape.ld_v, scratch.state);
    for (int64_t i = first; i < last; ++i)
      step(c, i, record(round % 2 * half + first_record + i - first), scratch, s, column, columns);
    if (first < last && last == total)
      store_state(end(c, column, columns), p_.dim_k, s, l_.shape.ld_v, scratch.state);
  }

  // Columns of a slice: the cut that leaves the longest-working thread the fewest columns.
  int64_t slice_width(int64_t chains) const {
    const int64_t unit = p_.dim_v >= 2 * kSliceColumns ? kSliceColumns : kLanes;
    const int64_t units = ceil_div(p_.dim_v, unit);
    int64_t best = units, best_cost = ceil_div(chains, l_.threads) * units;
    for (int64_t slices = 2; slices <= units; ++slices) {
      const int64_t width = ceil_div(units, slices);
      const int64_t cost = ceil_div(chains * ceil_div(units, width), l_.threads) * width;
      if (cost < best_cost) best_cost = cost, best = width;
    }
    return best * unit;
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
