#include "cuda/sm90/scan.plan.h"

#include <algorithm>

#include "core/ledger.h"
#include "cuda/portable/chunk.plan.h"
#include "cuda/sm90/scan.layout.h"

namespace linattn::cuda::sm90 {
namespace {

struct Workspace {
  void* records;
  int64_t* chunk_begin;

  Workspace(Ledger* ledger, const Problem& p) {
    const int64_t count = chunk_slots(p) * p.heads_v;
    records = p.gate == Gate::channel ? static_cast<void*>(ledger->take<ChannelRecord>(count))
                                      : ledger->take<Record>(count);
    chunk_begin = p.varlen() ? ledger->take<int64_t>(p.num_sequences + 1) : nullptr;
  }
};

constexpr int64_t kParts = kDim / Layout<false>::kColumns;  // of V
// Shorter pieces would spend their time on what came before them.
constexpr int64_t kShortestPiece = 8;
// Cuts that depend on a sequence's own length alone.
constexpr int64_t kInvariantPiece = 64;

}  // namespace

std::string reject(const Problem& p, const DeviceFacts& facts) {
  if (facts.compute_capability != 90)
    return format_text("needs compute capability 9.0, %s has %d.%d", facts.name.c_str(),
                       facts.compute_capability / 10, facts.compute_capability % 10);
  // Decayed keys need bf16's range, and near keys without decay show what it rounds.
  if (p.gate == Gate::channel && p.update == Update::delta && p.q.type == Type::f16)
    return "takes bfloat16 for the delta update with gates a channel, q is float16";
  if (p.q.type == Type::f32) return "takes bfloat16 and float16, q is float32";
  if (p.dim_k != kDim || p.dim_v != kDim)
    return format_text("takes K = V = 128, got K = %lld, V = %lld", static_cast<long long>(p.dim_k),
                       static_cast<long long>(p.dim_v));
  if (p.intermediate_states.present() && p.state_every % kChunk != 0)
    return format_text("writes intermediate states every multiple of 32 tokens, asked are %lld",
                       static_cast<long long>(p.state_every));
  if (std::string reason = scattered_channels(p); !reason.empty()) return reason;
  if (p.qk_norm && p.update == Update::additive) return "norms q and k for the delta update alone";
  if (chunk_slots(p) * p.heads_v > kLargestGrid || scan_grid(p, cut_of(p, facts)) > kLargestGrid)
    return "needs more than 2^31 CTAs for this size";
  return "";
}

bool anchored_gates(const Problem& p) {
  return p.gate_form == GateForm::bounded || (p.gate_form == GateForm::given && p.safe_gate);
}

int prepare_warps(const Problem& p) {
  int warps = kMostWarps;
  while (p.group() % warps != 0) --warps;
  return warps;
}

int64_t prepare_grid(const Problem& p) {
  return chunk_slots(p) * p.heads_v / (p.gate == Gate::channel ? 1 : prepare_warps(p));
}

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
        facts.num_sms / std::max<int64_t>(p.heads_v * kParts, 1) - p.num_sequences + 1;
    if (pieces <= 1) return cut;
    const int64_t chunks = p.varlen() ? longest : p.batch * longest;
    cut.piece = std::min(std::max((chunks + pieces - 1) / pieces, kShortestPiece), longest);
  }
  cut.pieces = (longest + cut.piece - 1) / cut.piece;
  return cut;
}

int64_t scan_grid(const Problem& p, const Cut& cut) {
  return (p.num_sequences + (p.varlen() ? 1 : 0)) * p.heads_v * cut.pieces * kParts;
}

int64_t workspace_bytes(const Problem& p) {
  Ledger ledger;
  Workspace(&ledger, p);
  return ledger.bytes();
}

ScanParams scan_params(const Problem& p, const Cut& cut, const linattn_args& args) {
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
  params.parts = FastDivisor(static_cast<uint32_t>(kParts));
  params.pieces = FastDivisor(static_cast<uint32_t>(cut.pieces));
  params.piece = static_cast<int>(cut.piece);
  params.vectors =
      rows_aligned(p.q, args.q, p, 8) && rows_aligned(p.k, args.k, p, 8) &&
      rows_aligned(p.v, args.v, p, 8) && rows_aligned(p.o, args.o, p, 8) &&
      (p.gate != Gate::channel || rows_aligned(p.g, args.g, p, 16 / size_of(p.g.type)));
  return params;
}

}  // namespace linattn::cuda::sm90
