#include "cuda/portable/chunk_forward.plan.h"

#include "core/ledger.h"
#include "core/status.h"

namespace linattn::cuda {
namespace {

bool is_channel(const Problem& p) { return p.gate == Gate::channel; }

ChunkRecord record_of(const Problem& p) {
  return {chunk_forward_dim(p), is_channel(p), p.update == Update::delta,
          static_cast<int>(size_of(p.q.type))};
}

// Batches of the value heads of a q/k head, a CTA of the preparation each.
int64_t prepare_batches(const Problem& p) {
  const int heads = chunk_prepare_heads(chunk_forward_dim(p), is_channel(p));
  return (p.group() + heads - 1) / heads;
}

struct Workspace {
  char* records;
  int64_t* chunk_begin;

  Workspace(Ledger* ledger, const Problem& p) {
    records = ledger->take<char>(chunk_slots(p) * p.heads_v * record_of(p).bytes());
    chunk_begin = p.varlen() ? ledger->take<int64_t>(p.num_sequences + 1) : nullptr;
  }
};

}  // namespace

int chunk_forward_dim(const Problem& p) { return p.dim_k <= 64 ? 64 : p.dim_k <= 128 ? 128 : 256; }

int chunk_prepare_block(const Problem& p) {
  return chunk_prepare_threads(chunk_forward_dim(p), is_channel(p));
}

int64_t chunk_prepare_grid(const Problem& p) {
  return chunk_slots(p) * p.heads_qk * prepare_batches(p);
}

int64_t chunk_scan_grid(const Problem& p, int groups) {
  return (p.num_sequences + (p.varlen() ? 1 : 0)) * p.heads_v *
         ((p.dim_v + groups * 16 - 1) / (groups * 16));
}

// Narrower slabs of V where there are too few chains for all SMs, which changes no number; and
// pairs of warps that split K where there are too few warps, which changes the order of sums.
ChunkScanShape chunk_scan_shape(const Problem& p, const DeviceFacts& facts,
                                const ScanBytes& bytes) {
  ChunkScanShape shape = {4, 1, 1};
  const auto is_few = [&](int groups) {
    return chunk_scan_grid(p, groups) * 4 < facts.num_sms * 3;
  };
  if (p.q.type == Type::f32)
    shape.parts = kF32Parts;
  else if ((is_few(4) && !p.batch_invariant) || chunk_forward_dim(p) == 256)
    shape.parts = 2;
  while (shape.groups > 1 && (is_few(shape.groups) || p.dim_v <= shape.groups * 8))
    shape.groups /= 2;
  // As many chunks on their way as shared memory holds, with two CTAs an SM where there are so
  // many: up to 5 % over a single one.
  const auto fits = [&](int stages, int64_t limit) {
    return bytes({shape.groups, shape.parts, stages}) <= limit;
  };
  const bool one = chunk_scan_grid(p, shape.groups) <= facts.num_sms;
  const int64_t most = facts.shared_bytes_block, share = one ? most : most / 2;
  while (shape.stages < kMaxScanStages && fits(shape.stages + 1, shape.stages < 2 ? most : share))
    ++shape.stages;
  return shape;
}

std::string chunk_forward_reject(const Problem& p) {
  const auto dim_k = static_cast<long long>(p.dim_k);
  // The rows of a chunk alone would be 96 KB.
  if (p.q.type == Type::f32 && p.dim_k > 128)
    return format_text("takes float32 with K up to 128, q has K = %lld", dim_k);
  // A sum of few products does not average fp16's rounding away: 2e-3 is missed at K = 1.
  if (p.q.type == Type::f16 && p.dim_k < 16)
    return format_text("takes float16 with K of 16 and more, q has K = %lld", dim_k);
  if (std::string reason = scattered_channels(p); !reason.empty()) return reason;
  if (p.num_tokens >= kLargestGrid) return "counts tokens in 32 bits";
  if (chunk_slots(p) * p.heads_v > kLargestGrid || chunk_scan_grid(p, 1) > kLargestGrid)
    return "needs more than 2^31 CTAs for this size";
  return "";
}

std::string chunk_scan_reject(const DeviceFacts& facts, const ScanBytes& bytes) {
  const auto shared = static_cast<long long>(bytes({4, 2, 1}));
  if (shared <= facts.shared_bytes_block) return "";
  return format_text("needs %lld bytes of shared memory a CTA, %s has %lld", shared,
                     facts.name.c_str(), static_cast<long long>(facts.shared_bytes_block));
}

int64_t chunk_forward_workspace(const Problem& p) {
  Ledger ledger;
  Workspace(&ledger, p);
  return ledger.bytes();
}

ChunkParams chunk_forward_params(const Problem& p, const ChunkScanShape& shape,
                                 const linattn_args& args) {
  Ledger ledger(args.workspace);
  const Workspace workspace(&ledger, p);
  const int groups = shape.groups;
  ChunkParams params;
  params.problem = p;
  params.args = args;
  params.records = workspace.records;
  params.chunk_begin = workspace.chunk_begin;
  params.chunks_a_sequence = chunks_a_sequence(p);
  params.record_bytes = record_of(p).bytes();
  params.scale = static_cast<float>(p.scale);
  params.heads_v = FastDivisor(static_cast<uint32_t>(p.heads_v));
  params.prepare_batches = FastDivisor(static_cast<uint32_t>(prepare_batches(p)));
  params.prepare_blocks = FastDivisor(static_cast<uint32_t>(p.heads_qk * prepare_batches(p)));
  params.group = FastDivisor(static_cast<uint32_t>(p.group()));
  params.slabs = FastDivisor(static_cast<uint32_t>((p.dim_v + groups * 16 - 1) / (groups * 16)));
  params.dim_k = static_cast<int32_t>(p.dim_k);
  params.dim_v = static_cast<int32_t>(p.dim_v);
  params.scan_stages = shape.stages;
  params.delta = p.update == Update::delta;
  const int64_t unit = 16 / size_of(p.q.type);
  params.qk_vectors = p.dim_k % unit == 0 && rows_aligned(p.q, args.q, p, unit) &&
                      rows_aligned(p.k, args.k, p, unit);
  params.v_vectors = p.dim_v % unit == 0 && rows_aligned(p.v, args.v, p, unit);
  const int64_t lane = chunk_forward_dim(p) == 64 ? 2 : 4;
  params.vectors = rows_aligned(p.q, args.q, p, lane) && rows_aligned(p.k, args.k, p, lane) &&
                   (!p.g.present() || rows_aligned(p.g, args.g, p, lane));
  params.o_pairs = p.dim_v % 2 == 0 && rows_aligned(p.o, args.o, p, 2);
  return params;
}

}  // namespace linattn::cuda
