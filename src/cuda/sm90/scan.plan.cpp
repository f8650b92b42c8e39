#include "cuda/sm90/scan.plan.h"

#include <algorithm>
#include <numeric>

#include "core/ledger.h"
#include "cuda/portable/chunk.plan.h"

namespace linattn::cuda::sm90 {
namespace {

// Places of segments: two for every piece but those of sequences of one piece, which a number of
// chunks below `piece` leaves.
int64_t places(const Problem& p, const Cut& cut) {
  return 2 * (chunk_slots(p) / cut.piece) * p.heads_v;
}

// Entries of the list's sections, at most.
struct Sections {
  int64_t count[kSections];

  Sections(const Problem& p, const Cut& cut) {
    const int64_t segments = places(p, cut);
    count[kBuild] = 2 * segments;  // maps and rests, or outputs of segments whose state is known
    count[kPiece] = segments;
    count[kMerge] = segments * kSlabs;
    count[kShort] = p.num_sequences * p.heads_v;
    for (int i = 0; i < kQuarters; ++i) count[kHanded + i] = segments;
  }
  int64_t all() const { return std::accumulate(count, count + kSections, int64_t{0}); }
};

struct Workspace {
  void* records;
  int64_t* chunk_begin;
  Cuts cuts;

  Workspace(Ledger* ledger, const Problem& p, const Cut& cut) {
    const int64_t count = chunk_slots(p) * p.heads_v;
    records = p.gate == Gate::channel ? static_cast<void*>(ledger->take<ChannelRecord>(count))
                                      : ledger->take<Record>(count);
    chunk_begin = p.varlen() ? ledger->take<int64_t>(p.num_sequences + 1) : nullptr;
    if (cut.piece == 0) return;
    const int64_t n = places(p, cut);
    cuts.work = ledger->take<Work>(Sections(p, cut).all());
    cuts.bounds = ledger->take<float>(count);
    cuts.counts = ledger->take<uint32_t>(kSections);
    cuts.handed = ledger->take<uint8_t>(n);
    cuts.built = ledger->take<uint32_t>(n);
    cuts.ready = ledger->take<uint32_t>(n * kSlabs);
    cuts.states = ledger->take<float>(n * kSlabs * kStateFloats);
    cuts.maps = p.update == Update::delta ? ledger->take<char>(n * kMapBytes)
                                          : reinterpret_cast<char*>(ledger->take<float>(n * kDim));
  }
};

constexpr int64_t kParts = kDim / Layout<false>::kColumns;  // of V
// Shorter pieces would spend their time on what came before them, shorter segments on waits.
constexpr int64_t kShortestPiece = 16;
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
  // A slot that is updated in place has no second place for a state.
  if (!p.auto_cp || p.pool()) return {};
  const int64_t longest = chunks_a_sequence(p), chains = p.heads_v;
  Cut cut{kInvariantPiece, true};
  if (!p.batch_invariant) {
    // As many pieces, of sequences of any lengths, as fill the SMs once. Where nothing decays, all
    // but the first segments cost three times as much: (S / C + 2) / 3 pieces of S / C make the
    // work about as long as a sequence's two segments one after the other.
    const int64_t slots = facts.num_sms;
    const int64_t pieces = p.gate != Gate::none
                               ? slots / chains
                               : (2 * slots + chains * (4 * p.num_sequences + 3)) / (6 * chains);
    if (pieces == 0) return {};
    cut.piece = (p.varlen() ? longest : p.batch * longest) / pieces;
    // A merge takes as long as two chunks, and there is one for each segment: of T chunks those of
    // sqrt(T) are soonest done. A known piece is then a segment where it would be less than two.
    cut.joined = cut.piece * cut.piece >= 3 * longest;
    cut.piece = std::max(cut.joined ? cut.piece : 2 * cut.piece, kShortestPiece);
  }
  return longest / cut.piece < 2 ? Cut{} : cut;
}

std::string describe(const Problem& p, const Cut& cut) {
  if (cut.piece == 0) return "a CTA for each sequence and value head";
  return format_text(
      "sequences of 2 x %lld tokens and more cut into pieces of at least %lld, at most %lld of "
      "them, "
      "of two segments each; CTAs past the device's list of work end at once",
      static_cast<long long>(cut.piece * kChunk), static_cast<long long>(cut.piece * kChunk),
      static_cast<long long>(std::max<int64_t>(chunks_a_sequence(p) / cut.piece, 1)));
}

int64_t cut_grid(const Problem& p, const Cut& cut) {
  constexpr int64_t kWarps = kCutThreads / 32;
  return ((chunk_slots(p) / cut.piece + p.num_sequences) * p.heads_v + kWarps - 1) / kWarps;
}

// Of a piece's two segments, three CTAs each at most: both handed, with maps to come to the next.
int64_t list_grid(const Problem& p, const Cut& cut) {
  if (cut.piece == 0) return 0;
  return p.num_sequences * p.heads_v + places(p, cut) * 3;
}

int64_t scan_grid(const Problem& p, const Cut& cut) {
  const int64_t extra = p.varlen() ? 1 : 0;
  const int64_t whole = (cut.piece == 0 ? p.num_sequences : 0) + extra;
  return whole * p.heads_v * kParts + list_grid(p, cut);
}

int64_t workspace_bytes(const Problem& p, const Cut& cut) {
  Ledger ledger;
  Workspace(&ledger, p, cut);
  return ledger.bytes();
}

ScanParams scan_params(const Problem& p, const Cut& cut, const linattn_args& args) {
  Ledger ledger(args.workspace);
  const Workspace workspace(&ledger, p, cut);
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
  params.cuts = workspace.cuts;
  if (cut.piece > 0) {
    Cuts& cuts = params.cuts;
    cuts.grid = static_cast<uint32_t>(list_grid(p, cut));
    cuts.skipped = static_cast<uint32_t>(p.num_sequences * p.heads_v);
    cuts.slots = chunk_slots(p);
    cuts.piece = static_cast<int32_t>(cut.piece);
    cuts.reach = static_cast<int32_t>(cut.piece + kShortestPiece);
    cuts.joined = cut.joined;
    uint32_t first = 0;
    const Sections sections(p, cut);
    for (int i = 0; i < kSections; ++i)
      cuts.first[i] = first, first += static_cast<uint32_t>(sections.count[i]);
  }
  params.vectors =
      rows_aligned(p.q, args.q, p, 8) && rows_aligned(p.k, args.k, p, 8) &&
      rows_aligned(p.v, args.v, p, 8) && rows_aligned(p.o, args.o, p, 8) &&
      (p.gate != Gate::channel || rows_aligned(p.g, args.g, p, 16 / size_of(p.g.type)));
  return params;
}

}  // namespace linattn::cuda::sm90
