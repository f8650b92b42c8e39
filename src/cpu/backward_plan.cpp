#include "cpu/backward_plan.h"

#include <algorithm>

#include "cpu/states.h"

namespace linattn::cpu {
namespace {

// Chunks of 32: with 64 the products inside a chunk (a quarter of the work) double, with 16 the
// states move twice as often.
constexpr int64_t kChunk = 32;
static_assert(kChunk <= kMaxChunk);

constexpr int64_t kMaxGroups = 64;
constexpr int64_t kBytesPerThread = 1 << 20;

int64_t bytes_of(const TokenView& view, const Problem& p, int64_t heads, int64_t dim) {
  return size_of(view.type) * p.batch * p.num_tokens * heads * dim;
}

// Of the tensors that grow with the number of tokens.
int64_t token_bytes(const Problem& p) {
  const int64_t gate_dim = p.gate == Gate::channel ? p.dim_k : 1;
  return bytes_of(p.q, p, p.heads_qk, p.dim_k) + bytes_of(p.k, p, p.heads_qk, p.dim_k) +
         bytes_of(p.v, p, p.heads_v, p.dim_v) + bytes_of(p.g, p, p.heads_v, gate_dim) +
         bytes_of(p.beta, p, p.heads_v, 1) + bytes_of(p.do_, p, p.heads_v, p.dim_v) +
         bytes_of(p.dq, p, p.heads_qk, p.dim_k) + bytes_of(p.dk, p, p.heads_qk, p.dim_k) +
         bytes_of(p.dv, p, p.heads_v, p.dim_v) + bytes_of(p.dg, p, p.heads_v, gate_dim) +
         bytes_of(p.dbeta, p, p.heads_v, 1);
}

int64_t sum_bytes(const Problem& p, const BackwardPlan& plan) {
  Ledger ledger;
  SharedScratch(&ledger, p, plan);
  return ledger.bytes();
}

// A function of the problem alone: the order of sums must not depend on the machine, nor on how
// many sequences there are.
int64_t choose_parts(const Problem& p) {
  int64_t best = 1;
  for (int64_t parts = 2; parts <= p.group(); ++parts) {
    if (p.group() % parts != 0 || p.heads_qk * parts > 16) continue;
    BackwardPlan plan;
    plan.parts = parts;
    if (sum_bytes(p, plan) <= token_bytes(p) / 2) best = parts;
  }
  return best;
}

int64_t lane_bytes(const BackwardSizes& sizes, int64_t slots, bool delta) {
  Ledger ledger;
  Lane(&ledger, sizes, slots, delta);
  return ledger.bytes();
}

// Slots with which every chunk's state is computed at most twice.
int64_t slots_for_two_sweeps(int64_t chunks) {
  int64_t slots = 1;
  while (slots * (slots + 1) / 2 < chunks) ++slots;
  return slots;
}

}  // namespace

bool wants_gate_gradient(const Problem& p) {
  return p.dg.present() || p.dA_log.present() || p.ddt_bias.present();
}

BackwardSizes::BackwardSizes(const Problem& p) : dim_k(p.dim_k), dim_v(p.dim_v), chunk(kChunk) {
  rows = std::clamp<int64_t>(p.num_tokens, 1, chunk);
  ld_k = leading(dim_k);
  ld_v = leading(dim_v);
  ld_c = leading(rows);
  ld_m = leading(2 * rows);
}

Lane::Lane(Ledger* ledger, const BackwardSizes& z, int64_t num_slots, bool delta) {
  const int64_t half = std::max<int64_t>(1, z.chunk / 2);
  const int64_t half_rows = std::min(half, z.rows), ld_half = leading(half);
  const auto take = [&](int64_t count) { return ledger->take<float>(count); };
  ChunkScratch& s = scratch;
  s.qk = take(2 * z.rows * z.ld_k);
  s.qk_in = take(2 * z.rows * z.ld_k);
  s.k_out = take(z.rows * z.ld_k);
  s.x = take(2 * z.rows * z.ld_v);
  s.v = take(delta ? 0 : z.rows * z.ld_v);
  s.dr = take(z.rows * std::max(z.ld_k, z.ld_v));
  s.dlog = s.dr;
  s.a = take(z.rows * z.ld_k);
  s.x_t = take(std::max(z.dim_v * z.ld_m, z.dim_k * z.ld_c));
  s.r_t = take(z.dim_v * z.ld_c);
  const int64_t node = 6 * half_rows * z.ld_k + z.dim_k * ld_half;
  s.dqk_t = take(std::max({z.dim_k * z.ld_m, node, state_work(z.dim_k)}));
  s.node_x = s.dqk_t;
  s.node_dx = s.node_x + 2 * half_rows * z.ld_k;
  s.node_k = s.node_dx + 2 * half_rows * z.ld_k;
  s.node_dk = s.node_k + half_rows * z.ld_k;
  s.node_kt = s.node_dk + half_rows * z.ld_k;
  s.node_p = take(2 * half_rows * ld_half);
  s.dpa = take(2 * z.rows * z.ld_c);
  s.p = take(z.rows * z.ld_c);
  s.weights = take(z.rows * z.ld_c);
  s.pairs = take(z.rows * z.ld_c);
  for (float** row : {&s.gamma, &s.through, &s.bias, &s.dbias})
    *row = take(std::max(z.ld_k, z.ld_c));
  for (float** row : {&s.beta, &s.dbeta, &s.decay, &s.prefix, &s.suffix, &s.logit})
    *row = take(z.ld_c);
  s.inverse_norms = take(2 * z.rows);
  s.dots = take(4 * z.rows);
  s.ds = take(z.dim_k * z.ld_v);
  s.dbias_sum = ledger->take<double>(z.dim_k);
  Ledger one;
  one.take<float>(z.dim_k * z.ld_v);
  if (delta) {
    one.take<float>(z.rows * z.ld_v);
    one.take<float>(z.rows * z.ld_c);
  }
  slot_bytes = one.bytes();
  slots = ledger->take<char>(num_slots * slot_bytes);
}

Slot Lane::slot(int64_t index, const BackwardSizes& z, bool delta) const {
  Ledger at(slots + index * slot_bytes);
  Slot slot{at.take<float>(z.dim_k * z.ld_v), nullptr, nullptr};
  if (delta) {
    slot.e = at.take<float>(z.rows * z.ld_v);
    slot.a = at.take<float>(z.rows * z.ld_c);
  }
  return slot;
}

SharedScratch::SharedScratch(Ledger* ledger, const Problem& p, const BackwardPlan& plan) {
  const int64_t rows =
      p.group() > 1 ? plan.parts * p.batch * p.num_tokens * p.heads_qk * p.dim_k : 0;
  dq = ledger->take<float>(p.dq.present() ? rows : 0);
  dk = ledger->take<float>(p.dk.present() ? rows : 0);
  const int64_t heads = plan.groups * p.heads_v;
  dA_log = ledger->take<double>(p.dA_log.present() ? heads : 0);
  ddt_bias = ledger->take<double>(
      p.ddt_bias.present() ? heads * (p.gate == Gate::channel ? p.dim_k : 1) : 0);
}

std::string reject_backward(const Problem&, const DeviceFacts&) { return ""; }

void plan_backward(Plan* plan) {
  const Problem& p = plan->problem;
  const BackwardSizes sizes(p);
  const bool delta = p.update == Update::delta;
  BackwardPlan b;
  b.parts = choose_parts(p);
  b.groups = std::clamp<int64_t>(p.num_sequences, 1, kMaxGroups);
  const int64_t tasks = b.groups * p.heads_qk * b.parts;
  const int64_t threads = std::clamp<int64_t>(plan->facts.threads, 1, tasks);
  const int64_t shared = sum_bytes(p, b);
  const int64_t chunks = std::max<int64_t>(1, sizes.chunks(p.num_tokens));

  // As many states as the memory limit lets every thread keep; with fewer than all of them some
  // are computed twice. A packed batch may hold one long sequence, so T bounds each.
  const int64_t limit = token_bytes(p) - shared;
  const int64_t least = std::min(chunks, slots_for_two_sweeps(chunks));
  const int64_t base = lane_bytes(sizes, 0, delta), slot = lane_bytes(sizes, 1, delta) - base;
  b.lanes = threads;
  const auto slots_with = [&](int64_t lanes) {
    return (limit + kBytesPerThread * plan->facts.threads) / lanes / slot - base / slot - 1;
  };
  while (b.lanes > 1 && slots_with(b.lanes) < least) --b.lanes;
  b.slots = std::clamp<int64_t>(slots_with(b.lanes), 1, chunks);

  plan->config[0] = b.lanes;
  plan->config[1] = b.slots;
  plan->config[2] = b.parts;
  plan->config[3] = b.groups;
  plan->workspace_bytes = b.lanes * lane_bytes(sizes, b.slots, delta) + shared;
  plan->launches.push_back({"chunk_backward_cpu", {tasks, 1, 1}, 1});
}

BackwardPlan plan_of(const Plan& plan) {
  return {plan.config[0], plan.config[1], plan.config[2], plan.config[3]};
}

}  // namespace linattn::cpu
