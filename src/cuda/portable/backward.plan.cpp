#include "cuda/portable/backward.plan.h"

#include <algorithm>
#include <cmath>

#include "core/ledger.h"

namespace linattn::cuda {
namespace {

constexpr int64_t kLargestGrid = (1ll << 31) - 1;

int64_t slabs(const Problem& p) {
  const int64_t slab = token_slab(token_channels(p));
  return (p.dim_v + slab - 1) / slab;
}

int64_t tasks(const Problem& p) { return p.num_sequences * p.heads_v * slabs(p); }

// Two CTAs an SM; the rest of the tasks follow in turn, so that their states need no more room.
int64_t workers(const Problem& p, const DeviceFacts& facts) {
  return std::min<int64_t>(tasks(p), 2 * std::max(1, facts.num_sms));
}

int64_t finish_blocks(const Problem& p) {
  return p.batch * ((p.num_tokens + kFinishTokens - 1) / kFinishTokens);
}

// About as many checkpoints as states of a segment.
int64_t segment_length(const Problem& p) {
  return std::max<int64_t>(
      1, static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(p.num_tokens)))));
}

bool wants_gate(const Problem& p) {
  return p.dg.present() || p.dA_log.present() || p.ddt_bias.present();
}
bool wants_gate_sums(const Problem& p) { return p.dA_log.present() || p.ddt_bias.present(); }
int64_t gate_dim(const Problem& p) { return p.gate == Gate::channel ? p.dim_k : 1; }

void lay_out(Ledger* ledger, const Problem& p, const DeviceFacts& facts, BackwardParams* params) {
  params->segment = segment_length(p);
  params->checkpoints = (p.num_tokens + params->segment - 1) / params->segment;
  params->slabs = static_cast<int32_t>(slabs(p));
  params->gate_dim = static_cast<int32_t>(gate_dim(p));
  params->tasks = tasks(p);
  params->workers = workers(p, facts);
  params->gate_blocks = finish_blocks(p);
  params->rows = p.batch * p.num_tokens;
  const int64_t rows = params->slabs * params->rows * p.heads_v;
  const auto take = [&](bool wanted, int64_t count) {
    return wanted ? ledger->take<float>(count) : nullptr;
  };
  params->dq = take(p.dq.present(), rows * p.dim_k);
  params->dk = take(p.dk.present(), rows * p.dim_k);
  params->dg = take(wants_gate(p), rows * gate_dim(p));
  params->dbeta = take(p.dbeta.present(), rows);
  params->gate_sums = take(wants_gate_sums(p), finish_blocks(p) * p.heads_v * (gate_dim(p) + 1));
  const int channels = token_channels(p);
  params->states = take(true, params->workers * (params->checkpoints + params->segment) *
                                  token_slab(channels) * 32 * channels);
}

}  // namespace

int token_channels(const Problem& p) { return p.dim_k <= 128 ? 4 : 8; }

BackwardGrids backward_grids(const Problem& p, const DeviceFacts& facts) {
  return {workers(p, facts), finish_blocks(p) * p.heads_qk,
          wants_gate_sums(p) ? p.heads_v * ((gate_dim(p) + 1 + 31) / 32) : 0};
}

std::string backward_reject(const Problem& p, const DeviceFacts& facts) {
  const BackwardGrids grids = backward_grids(p, facts);
  if (std::max({grids.token, grids.finish, grids.gate_sums}) > kLargestGrid)
    return "needs more than 2^31 CTAs for this size";
  return "";
}

int64_t backward_workspace(const Problem& p, const DeviceFacts& facts) {
  Ledger ledger;
  BackwardParams params;
  lay_out(&ledger, p, facts, &params);
  return ledger.bytes();
}

BackwardParams backward_params(const Problem& p, const DeviceFacts& facts,
                               const linattn_args& args) {
  BackwardParams params{};
  params.problem = p;
  params.args = args;
  params.scale = static_cast<float>(p.scale);
  Ledger ledger(args.workspace);
  lay_out(&ledger, p, facts, &params);
  return params;
}

}  // namespace linattn::cuda
