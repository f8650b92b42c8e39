// chunk_forward on Hopper for gates that are one number a token: index (varlen), preparation, scan.
#include <cuda_runtime_api.h>

#include <algorithm>

#include "core/ledger.h"
#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/portable/chunk.kernels.h"
#include "cuda/portable/chunk.plan.h"
#include "cuda/sm90/kernels.h"
#include "cuda/sm90/scan.params.h"
#include "cuda/sm90/scan.shared.h"
#include "cuda/tile/tensor_map.h"

namespace linattn::cuda {
namespace {

using sm90::kDim;
using sm90::Kernel;
using sm90::kSlab;
using sm90::Record;
using sm90::ScanParams;

struct Workspace {
  Record* records;
  int64_t* chunk_begin;

  Workspace(Ledger* ledger, const Problem& p) {
    records = ledger->take<Record>(chunk_slots(p) * p.heads_v);
    chunk_begin = p.varlen() ? ledger->take<int64_t>(p.num_sequences + 1) : nullptr;
  }
};

// A warp each for value heads of one q/k head, which share its tile.
int prepare_warps(const Problem& p) {
  int warps = sm90::kMostWarps;
  while (p.group() % warps != 0) --warps;
  return warps;
}

int64_t prepare_grid(const Problem& p) { return chunk_slots(p) * p.heads_v / prepare_warps(p); }

// How the scan is cut.
struct Cut {
  int64_t piece;   // chunks of a piece
  int64_t pieces;  // of a sequence at most
};

constexpr int64_t kSlabs = kDim / kSlab;
// Shorter pieces would spend their time on what came before them.
constexpr int64_t kShortestPiece = 8;
// Cuts that depend on a sequence's own length alone.
constexpr int64_t kInvariantPiece = 64;

Cut cut_of(const Problem& p, const DeviceFacts& facts) {
  const int64_t longest = std::max<int64_t>(chunks_a_sequence(p), 1);
  Cut cut{longest, 1};
  // Where nothing decays, or a slot is updated in place, a piece could not start before the others.
  if (!p.auto_cp || p.pool() || p.gate == Gate::none) return cut;
  if (p.batch_invariant) {
    cut.piece = std::min(kInvariantPiece, longest);
  } else {
    // With this many pieces in all, sequences of any lengths fill the SMs about once.
    const int64_t pieces =
        sm90::Layout::kCtas * facts.num_sms / std::max<int64_t>(p.heads_v * kSlabs, 1) -
        p.num_sequences + 1;
    if (pieces <= 1) return cut;
    const int64_t chunks = p.varlen() ? longest : p.batch * longest;
    cut.piece = std::min(std::max((chunks + pieces - 1) / pieces, kShortestPiece), longest);
  }
  cut.pieces = (longest + cut.piece - 1) / cut.piece;
  return cut;
}

int64_t scan_grid(const Problem& p, const Cut& cut) {
  return (p.num_sequences + (p.varlen() ? 1 : 0)) * p.heads_v * cut.pieces * kSlabs;
}

Kernel prepare_kernel_for(const Problem& p) {
  return sm90::prepare_kernel_of(p.q.type == Type::bf16, p.update == Update::delta,
                                 prepare_warps(p));
}

Kernel scan_kernel_for(const Problem& p) {
  return sm90::scan_kernel_of(p.q.type == Type::bf16, p.update == Update::delta);
}

std::string reject(const Problem& p, const DeviceFacts& facts) {
  if (facts.compute_capability != 90)
    return format_text("needs compute capability 9.0, %s has %d.%d", facts.name.c_str(),
                       facts.compute_capability / 10, facts.compute_capability % 10);
  if (p.gate == Gate::channel) return "takes gates that are one number a token, g has K of them";
  if (p.q.type == Type::f32) return "takes bfloat16 and float16, q is float32";
  if (p.dim_k != kDim || p.dim_v != kDim)
    return format_text("takes K = V = 128, got K = %lld, V = %lld", static_cast<long long>(p.dim_k),
                       static_cast<long long>(p.dim_v));
  if (p.intermediate_states.present() && p.state_every % kChunk != 0)
    return format_text("writes intermediate states every multiple of 32 tokens, asked are %lld",
                       static_cast<long long>(p.state_every));
  if (std::string reason = scattered_channels(p); !reason.empty()) return reason;
  if (p.qk_norm && p.update == Update::additive) return "norms q and k for the delta update alone";
  // Keys that rounding made longer than 1 amplify every error at beta 2, more than 10 bits of T
  // bear.
  if (p.update == Update::delta && !p.qk_norm && p.beta_form != BetaForm::sigmoid)
    return "takes beta above 1 with the norm of q and k inside only, and beta is given, not a "
           "sigmoid";
  if (chunk_slots(p) * p.heads_v > kLargestGrid || scan_grid(p, cut_of(p, facts)) > kLargestGrid)
    return "needs more than 2^31 CTAs for this size";
  return "";
}

void plan(Plan* plan) {
  const Problem& p = plan->problem;
  Ledger ledger;
  Workspace(&ledger, p);
  plan->workspace_bytes = ledger.bytes();
  const Cut cut = cut_of(p, plan->facts);
  plan->config[0] = cut.piece, plan->config[1] = cut.pieces;
  const Kernel prepare = prepare_kernel_for(p), scan = scan_kernel_for(p);
  if (p.varlen()) plan->launches.push_back({"chunk_index_portable", {1, 1, 1}, 1024});
  plan->launches.push_back({"chunk_prepare_sm90", {prepare_grid(p), 1, 1}, prepare.threads});
  plan->launches.push_back({"chunk_scan_sm90", {scan_grid(p, cut), 1, 1}, scan.threads});
  const int device = plan->facts.device.index;
  if (p.varlen()) prepare_kernel(chunk_index_kernel().address, 0, device);
  for (const Kernel& kernel : {prepare, scan})
    prepare_kernel(kernel.address, kernel.shared_bytes, device);
}

bool map_rows(const Problem& p, const TokenView& view, const void* data, int64_t heads,
              CUtensorMap* map) {
  return tile::make_tensor_map({data, view.type == Type::bf16, p.batch, p.num_tokens, heads, kDim,
                                view.b, view.t, view.h, kChunk},
                               map);
}

Cut planned_cut(const Plan& plan) { return {plan.config[0], plan.config[1]}; }

ScanParams params_of(const Plan& plan, const linattn_args& args) {
  const Problem& p = plan.problem;
  Ledger ledger(args.workspace);
  const Workspace workspace(&ledger, p);
  ScanParams params;
  params.problem = p;
  params.args = args;
  params.records = workspace.records;
  params.chunk_begin = workspace.chunk_begin;
  params.chunks_a_sequence = chunks_a_sequence(p);
  params.scale = static_cast<float>(p.scale);
  params.heads_v = FastDivisor(static_cast<uint32_t>(p.heads_v));
  params.group = FastDivisor(static_cast<uint32_t>(p.group()));
  const Cut cut = planned_cut(plan);
  params.slabs = FastDivisor(static_cast<uint32_t>(kSlabs));
  params.pieces = FastDivisor(static_cast<uint32_t>(cut.pieces));
  params.piece = static_cast<int>(cut.piece);
  params.vectors = rows_aligned(p.q, args.q, p, 8) && rows_aligned(p.k, args.k, p, 8) &&
                   rows_aligned(p.v, args.v, p, 8) && rows_aligned(p.o, args.o, p, 8) &&
                   map_rows(p, p.q, args.q, p.heads_qk, &params.q_map) &&
                   map_rows(p, p.k, args.k, p.heads_qk, &params.k_map) &&
                   map_rows(p, p.v, args.v, p.heads_v, &params.v_map);
  return params;
}

Status run(const Plan& plan, const linattn_args& args, void* stream) {
  const Problem& p = plan.problem;
  const int device = plan.facts.device.index;
  const Cut cut = planned_cut(plan);
  const ScanParams params = params_of(plan, args);
  if (p.varlen()) {
    ChunkParams index;
    index.problem = p;
    index.args = args;
    index.chunk_begin = params.chunk_begin;
    LINATTN_RETURN_IF_FAILED(launch({"chunk_index_portable", 1, 1024, false},
                                    chunk_index_kernel().address, &index, device, stream));
  }
  const Kernel prepare = prepare_kernel_for(p), scan = scan_kernel_for(p);
  const int64_t preparations = prepare_grid(p), chains = scan_grid(p, cut);
  if (preparations > 0)
    LINATTN_RETURN_IF_FAILED(
        launch({"chunk_prepare_sm90", preparations, prepare.threads, false, prepare.shared_bytes},
               prepare.address, &params, device, stream));
  if (chains == 0) return LINATTN_OK;
  return launch({"chunk_scan_sm90", chains, scan.threads, preparations > 0, scan.shared_bytes},
                scan.address, &params, device, stream);
}

}  // namespace

const Implementation chunk_forward_sm90{"cuda_sm90", LINATTN_DEVICE_CUDA, reject, plan, run};

}  // namespace linattn::cuda
