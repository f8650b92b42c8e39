#include "cuda/portable/chunk_gradient.plan.h"

#include <algorithm>

#include "core/ledger.h"
#include "recurrence/tensor_rules.h"

namespace linattn::cuda {
namespace {

int64_t value_rows(const Problem& p) { return (p.dim_v + kSlabRows - 1) / kSlabRows * kSlabRows; }
int64_t gate_dim(const Problem& p) { return p.gate == Gate::channel ? p.dim_k : 1; }
bool wants_gate_sums(const Problem& p) { return p.dA_log.present() || p.ddt_bias.present(); }
bool wants_gradients(const Problem& p) {
  return p.dq.present() || p.dk.present() || p.dg.present() || p.dbeta.present() ||
         wants_gate_sums(p);
}

// CTAs of one scan with `warps` warps each, one for each chain and slab of V.
int64_t scan_chains(const Problem& p, int warps) {
  return (p.num_sequences + (p.varlen() ? 1 : 0)) * p.heads_v *
         ((p.dim_v + warps * 16 - 1) / (warps * 16));
}

struct Workspace {
  char *records, *states, *state_gradients, *errors, *error_gradients;
  float *row_sums, *gate_sums;
  int64_t* chunk_begin;

  Workspace(Ledger* ledger, const Problem& p) {
    const int64_t chunks = chunk_slots(p) * p.heads_v, dim = chunk_gradient_dim(p);
    const auto take = [&](bool wanted, int64_t bytes) {
      return wanted ? ledger->take<char>(chunks * bytes) : nullptr;
    };
    const bool delta = p.update == Update::delta;
    records = take(true, chunk_gradient_record(p).bytes());
    states = take(true, value_rows(p) * dim * 2);
    state_gradients = take(true, value_rows(p) * dim * 2);
    errors = take(delta, 2 * value_rows(p) * kChunk * 2);
    error_gradients = take(delta, 2 * value_rows(p) * kChunk * 2);
    row_sums = p.group() > 1 ? ledger->take<float>(chunk_slots(p) * p.heads_qk * 2 * kChunk * dim)
                             : nullptr;
    gate_sums = wants_gate_sums(p) ? ledger->take<float>(chunks * (gate_dim(p) + 1)) : nullptr;
    chunk_begin = p.varlen() ? ledger->take<int64_t>(p.num_sequences + 1) : nullptr;
  }
};

}  // namespace

int chunk_gradient_dim(const Problem& p) { return p.dim_k <= 64 ? 64 : 128; }

GradientRecord chunk_gradient_record(const Problem& p) {
  return {chunk_gradient_dim(p), p.gate == Gate::channel, p.update == Update::delta};
}

// Narrower slabs of V where there are too few chains for all SMs; the numbers do not change.
int chunk_gradient_warps(const Problem& p, const DeviceFacts& facts) {
  return p.dim_v <= 32 || 2 * scan_chains(p, 4) * 4 < facts.num_sms * 3 ? 2 : 4;
}

ChunkGradientGrids chunk_gradient_grids(const Problem& p, const DeviceFacts& facts) {
  const int64_t chunks = chunk_slots(p) * p.heads_v;
  return {p.varlen() ? 1 : 0, chunks, 2 * scan_chains(p, chunk_gradient_warps(p, facts)),
          wants_gradients(p) ? chunk_slots(p) * p.heads_qk : 0,
          wants_gate_sums(p) ? p.heads_v * ((gate_dim(p) + 1 + 31) / 32) : 0};
}

std::string chunk_gradient_reject(const Problem& p, const DeviceFacts& facts) {
  // fp16 has no room for gradients and decays that are small beside 1: 1e-2 is missed.
  if (p.q.type != Type::bf16)
    return "takes bfloat16, q is " + type_name(static_cast<int32_t>(p.q.type));
  if (p.dim_k > 128)
    return format_text("takes K up to 128, q has K = %lld", static_cast<long long>(p.dim_k));
  // With few channels the delta update forgets the first state, whose gradient is what cancellation
  // leaves of a few sums of bf16 products: 1e-2 is missed at K = 1 and 2.
  if (p.dim_k < 16)
    return format_text("takes K of 16 and more, q has K = %lld", static_cast<long long>(p.dim_k));
  const int64_t gate = p.gate == Gate::channel ? p.dim_k : 1;
  const struct {
    const char* name;
    const TokenView& view;
    int64_t size;
  } rows[] = {{"q", p.q, p.dim_k},   {"k", p.k, p.dim_k},    {"v", p.v, p.dim_v},
              {"g", p.g, gate},      {"do", p.do_, p.dim_v}, {"dq", p.dq, p.dim_k},
              {"dk", p.dk, p.dim_k}, {"dv", p.dv, p.dim_v},  {"dg", p.dg, gate}};
  for (const auto& row : rows)
    if (row.view.present() && row.size > 1 && row.view.d != 1)
      return format_text("takes contiguous channels, %s has stride %lld on its last axis", row.name,
                         static_cast<long long>(row.view.d));
  const ChunkGradientGrids grids = chunk_gradient_grids(p, facts);
  if (std::max({grids.prepare, grids.states, grids.gate_sums}) > kLargestGrid)
    return "needs more than 2^31 CTAs for this size";
  return "";
}

int64_t chunk_gradient_workspace(const Problem& p) {
  Ledger ledger;
  Workspace(&ledger, p);
  return ledger.bytes();
}

ChunkGradientParams chunk_gradient_params(const Problem& p, const DeviceFacts& facts,
                                          const linattn_args& args) {
  Ledger ledger(args.workspace);
  const Workspace workspace(&ledger, p);
  ChunkGradientParams params{};
  ChunkParams& chunk = params.chunk;
  const int warps = chunk_gradient_warps(p, facts);
  const int64_t lane = chunk_gradient_dim(p) == 64 ? 2 : 4;
  chunk.problem = p;
  chunk.args = args;
  chunk.records = workspace.records;
  chunk.chunk_begin = workspace.chunk_begin;
  chunk.chunks_a_sequence = chunks_a_sequence(p);
  chunk.record_bytes = chunk_gradient_record(p).bytes();
  chunk.scale = static_cast<float>(p.scale);
  chunk.heads_v = FastDivisor(static_cast<uint32_t>(p.heads_v));
  chunk.group = FastDivisor(static_cast<uint32_t>(p.group()));
  chunk.slabs = FastDivisor(static_cast<uint32_t>((p.dim_v + warps * 16 - 1) / (warps * 16)));
  chunk.dim_k = static_cast<int32_t>(p.dim_k);
  chunk.dim_v = static_cast<int32_t>(p.dim_v);
  chunk.delta = p.update == Update::delta;
  chunk.qk_vectors =
      p.dim_k % 8 == 0 && rows_aligned(p.q, args.q, p, 8) && rows_aligned(p.k, args.k, p, 8);
  chunk.v_vectors = p.dim_v % 8 == 0 && rows_aligned(p.v, args.v, p, 8);
  chunk.vectors = rows_aligned(p.q, args.q, p, lane) && rows_aligned(p.k, args.k, p, lane) &&
                  (!p.g.present() || rows_aligned(p.g, args.g, p, lane));
  params.states = workspace.states;
  params.state_gradients = workspace.state_gradients;
  params.errors = workspace.errors;
  params.error_gradients = workspace.error_gradients;
  params.row_sums = workspace.row_sums;
  params.heads_qk = FastDivisor(static_cast<uint32_t>(p.heads_qk));
  params.gate_sums = workspace.gate_sums;
  params.value_rows = static_cast<int32_t>(value_rows(p));
  params.gate_dim = static_cast<int32_t>(gate_dim(p));
  params.do_vectors = p.dim_v % 8 == 0 && rows_aligned(p.do_, args.do_, p, 8);
  const auto neighbours = [&](const TokenView& view, const void* data, int64_t count) {
    return view.present() && rows_aligned(view, data, p, count);
  };
  params.dv_pairs = p.dim_v % 2 == 0 && p.dv.type == p.q.type && neighbours(p.dv, args.dv, 2);
  params.dq_vectors = neighbours(p.dq, args.dq, lane);
  params.dk_vectors = neighbours(p.dk, args.dk, lane);
  params.dg_vectors = neighbours(p.dg, args.dg, lane);
  params.qk_pairs = neighbours(p.q, args.q, 2) && neighbours(p.k, args.k, 2);
  return params;
}

BackwardParams chunk_gradient_sums(const ChunkGradientParams& params) {
  const Problem& p = params.chunk.problem;
  BackwardParams sums{};
  sums.problem = p;
  sums.args = params.chunk.args;
  sums.gate_sums = params.gate_sums;
  sums.gate_blocks = chunk_slots(p);
  sums.gate_dim = params.gate_dim;
  return sums;
}

}  // namespace linattn::cuda
