// Backward of every family. A task is a q/k head (or a part of its value heads) over a group of
// sequences: forward over the chunks for their states, then backward over them. Sums that several
// tasks add to lie in scratch, one place a task, and are added up in a fixed order at the end.
#include <algorithm>

#include "core/thread_pool.h"
#include "cpu/backward_chunk.h"
#include "cpu/cpu.h"
#include "cpu/outputs.h"
#include "recurrence/element.h"

namespace linattn::cpu {
namespace {

// Chunks [first, first + count) of the sequence, given the state before `first` in slot `at`; that
// slot and the later ones are free to use.
class Sweep {
 public:
  Sweep(HeadBackward& head, const Lane& lane, const BackwardSizes& sizes, int64_t slots, bool delta)
      : head_(head), lane_(lane), sizes_(sizes), slots_(slots), delta_(delta) {}

  void run(int64_t chunks) {
    if (chunks == 0) return;
    if (slots_ == 1) {
      // No room for a second state: every chunk's is computed from the start.
      for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
        head_.load_initial_state(slot(0).s);
        for (int64_t c = 0; c < chunk; ++c) head_.forward(c, slot(0), slot(0).s);
        head_.forward(chunk, slot(0), nullptr);
        head_.backward(chunk, slot(0));
      }
      return;
    }
    head_.load_initial_state(slot(0).s);
    range(0, chunks, 0);
  }

 private:
  Slot slot(int64_t index) const { return lane_.slot(index, sizes_, delta_); }

  void range(int64_t first, int64_t count, int64_t at) {
    const int64_t free = slots_ - at;
    if (count > free) {
      const int64_t left = split(count, free);
      const Slot right = slot(at + 1);
      head_.forward(first, slot(at), right.s);
      for (int64_t i = 1; i < left; ++i) head_.forward(first + i, right, right.s);
      range(first + left, count - left, at + 1);
      range(first, left, at);
      return;
    }
    for (int64_t i = 0; i < count; ++i)
      head_.forward(first + i, slot(at + i), i + 1 < count ? slot(at + i + 1).s : nullptr);
    for (int64_t i = count - 1; i >= 0; --i) head_.backward(first + i, slot(at + i));
  }

  // Chunks to pass over before the part that is done first. Those are computed a second time:
  // few, if the rest then fits; else as many as will fit in their turn.
  static int64_t split(int64_t count, int64_t free) {
    const int64_t rest = count - (free - 1);
    if (free == 2 || rest <= free) return rest;
    return count <= free * (free + 1) / 2 ? free : (count + 1) / 2;
  }

  HeadBackward& head_;
  const Lane& lane_;
  const BackwardSizes& sizes_;
  int64_t slots_;
  bool delta_;
};

struct Run {
  const Problem& p;
  const linattn_args& args;
  const BackwardPlan plan;
  const BackwardSizes sizes;
  Ledger ledger;
  SharedScratch shared;
  int64_t lane_bytes;

  Run(const Plan& owner, const linattn_args& call)
      : p(owner.problem),
        args(call),
        plan(plan_of(owner)),
        sizes(p),
        ledger(call.workspace),
        shared(&ledger, p, plan) {
    Ledger one;
    Lane(&one, sizes, plan.slots, delta());
    lane_bytes = one.bytes();
  }

  bool delta() const { return p.update == Update::delta; }

  Lane lane(int thread) const {
    Ledger at(static_cast<char*>(args.workspace) + ledger.bytes() + thread * lane_bytes);
    return Lane(&at, sizes, plan.slots, delta());
  }

  int64_t group_begin(int64_t group) const { return p.num_sequences * group / plan.groups; }

  template <class Float>
  Float* sums_of(Float* sums, int64_t part, int64_t batch) const {
    return sums + (part * p.batch + batch) * p.num_tokens * p.heads_qk * p.dim_k;
  }

  void task(int64_t index, int thread) const {
    const int64_t part = index % plan.parts, h = index / plan.parts % p.heads_qk;
    const int64_t group = index / plan.parts / p.heads_qk;
    const Lane lane = this->lane(thread);
    HeadBackward head(p, args, sizes, lane.scratch);
    const int64_t members = p.group() / plan.parts;
    for (int64_t m = 0; m < members; ++m) {
      const int64_t hv = h * p.group() + part * members + m;
      head.clear_gate_sums();
      for (int64_t sequence = group_begin(group); sequence < group_begin(group + 1); ++sequence) {
        const TokenRange range = token_range(p, args.cu_seqlens, sequence);
        HeadBackward::Sums sums{.add = m > 0};
        if (p.group() > 1 && p.dq.present()) sums.dq = sums_of(shared.dq, part, range.batch);
        if (p.group() > 1 && p.dk.present()) sums.dk = sums_of(shared.dk, part, range.batch);
        head.enter_head(sequence, range, hv, sums);
        head.load_state_gradient();
        Sweep(head, lane, sizes, plan.slots, delta()).run(sizes.chunks(range.length()));
        head.store_state_gradient();
      }
      if (p.dA_log.present()) shared.dA_log[group * p.heads_v + hv] = head.dA_log();
      if (p.ddt_bias.present())
        std::copy_n(lane.scratch.dbias_sum, gate_dim(),
                    shared.ddt_bias + (group * p.heads_v + hv) * gate_dim());
    }
  }

  int64_t gate_dim() const { return p.gate == Gate::channel ? p.dim_k : 1; }

  // Adds the parts of one q/k head's dq and dk over a group of sequences, and takes them to q and
  // k.
  void add_parts(int64_t index, int thread) const {
    const int64_t h = index % p.heads_qk, group = index / p.heads_qk;
    const Lane lane = this->lane(thread);
    HeadBackward head(p, args, sizes, lane.scratch);
    float* rows = lane.scratch.qk;
    for (int64_t sequence = group_begin(group); sequence < group_begin(group + 1); ++sequence) {
      const TokenRange range = token_range(p, args.cu_seqlens, sequence);
      head.enter_head(sequence, range, h * p.group(), {});
      for (int64_t t = range.begin; t < range.end; t += sizes.rows) {
        const ChunkPlace place{range.batch, t, std::min(sizes.rows, range.end - t), h * p.group()};
        // Not told apart by their pointers: an absent one takes no room, so both may be the same.
        for (const bool of_q : {true, false}) {
          if (!(of_q ? p.dq : p.dk).present()) continue;
          const float* sums = of_q ? shared.dq : shared.dk;
          for (int64_t i = 0; i < place.count; ++i)
            for (int64_t c = 0; c < padded(p.dim_k); ++c) {
              float sum = 0;
              for (int64_t part = 0; c < p.dim_k && part < plan.parts; ++part)
                sum += sums_of(sums, part, range.batch)[((t + i) * p.heads_qk + h) * p.dim_k + c];
              rows[i * sizes.ld_k + c] = sum;
            }
          of_q ? head.finish_dq(place, rows) : head.finish_dk(place, rows);
        }
      }
    }
  }

  void add_groups() const {
    for (int64_t hv = 0; hv < p.heads_v; ++hv) {
      double sum = 0;
      for (int64_t g = 0; p.dA_log.present() && g < plan.groups; ++g)
        sum += shared.dA_log[g * p.heads_v + hv];
      store_element(p.dA_log.type, args.dA_log, hv * p.dA_log.h, sum);
      for (int64_t c = 0; p.ddt_bias.present() && c < gate_dim(); ++c) {
        sum = 0;
        for (int64_t g = 0; g < plan.groups; ++g)
          sum += shared.ddt_bias[(g * p.heads_v + hv) * gate_dim() + c];
        store_element(p.ddt_bias.type, args.ddt_bias, hv * p.ddt_bias.h + c * p.ddt_bias.k, sum);
      }
    }
  }
};

Status run_backward(const Plan& plan, const linattn_args& args, void*) {
  const Run run(plan, args);
  const Problem& p = plan.problem;
  const int threads = static_cast<int>(run.plan.lanes);
  parallel_for(run.plan.groups * p.heads_qk * run.plan.parts, threads,
               [&](int64_t index, int thread) {
                 const FlushDenormals flush;
                 run.task(index, thread);
               });
  if (p.group() > 1 && (p.dq.present() || p.dk.present()))
    parallel_for(run.plan.groups * p.heads_qk, threads, [&](int64_t index, int thread) {
      const FlushDenormals flush;
      run.add_parts(index, thread);
    });
  run.add_groups();
  zero_unowned_tokens(p, args, p.dq, args.dq, p.heads_qk, p.dim_k);
  zero_unowned_tokens(p, args, p.dk, args.dk, p.heads_qk, p.dim_k);
  zero_unowned_tokens(p, args, p.dv, args.dv, p.heads_v, p.dim_v);
  zero_unowned_tokens(p, args, p.dg, args.dg, p.heads_v, run.gate_dim());
  zero_unowned_tokens(p, args, p.dbeta, args.dbeta, p.heads_v, 1);
  return LINATTN_OK;
}

}  // namespace

const Implementation backward{"cpu", LINATTN_DEVICE_CPU, reject_backward, plan_backward,
                              run_backward};

}  // namespace linattn::cpu
