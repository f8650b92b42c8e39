// chunk_forward on CUDA for 16-bit inputs: index (varlen), preparation, scan.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "core/ledger.h"
#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/portable/chunk.kernels.h"
#include "cuda/portable/chunk.params.h"
#include "cuda/portable/chunk.plan.h"

namespace linattn::cuda {
namespace {

int padded_dim(const Problem& p) { return p.dim_k <= 64 ? 64 : p.dim_k <= 128 ? 128 : 256; }

ChunkRecord record_of(const Problem& p) {
  return {padded_dim(p), p.gate == Gate::channel, p.update == Update::delta};
}

int prepare_threads(const Problem& p) {
  return chunk_prepare_threads(padded_dim(p), p.gate == Gate::channel);
}

// Batches of the value heads of a q/k head, a CTA of the preparation each.
int64_t prepare_batches(const Problem& p) {
  const int heads = chunk_prepare_heads(padded_dim(p), p.gate == Gate::channel);
  return (p.group() + heads - 1) / heads;
}

int64_t prepare_grid(const Problem& p) { return chunk_slots(p) * p.heads_qk * prepare_batches(p); }

struct Workspace {
  char* records;
  int64_t* chunk_begin;

  Workspace(Ledger* ledger, const Problem& p) {
    records = ledger->take<char>(chunk_slots(p) * p.heads_v * record_of(p).bytes());
    chunk_begin = p.varlen() ? ledger->take<int64_t>(p.num_sequences + 1) : nullptr;
  }
};

int64_t scan_grid(const Problem& p, int groups) {
  return (p.num_sequences + (p.varlen() ? 1 : 0)) * p.heads_v *
         ((p.dim_v + groups * 16 - 1) / (groups * 16));
}

ChunkScanShape shape_of(const Plan& plan) {
  return {static_cast<int>(plan.config[0]), static_cast<int>(plan.config[1]),
          static_cast<int>(plan.config[2])};
}

ChunkKernel scan_kernel(const Problem& p, const ChunkScanShape& shape) {
  const bool bf16 = p.q.type == Type::bf16, channel = p.gate == Gate::channel;
  const bool delta = p.update == Update::delta;
  const int dim = padded_dim(p);
  if (dim == 256) return chunk_scan_kernel_wide(delta, bf16, channel, shape);
  return delta ? chunk_scan_kernel_delta(bf16, dim, channel, shape)
               : chunk_scan_kernel_additive(bf16, dim, channel, shape);
}

// Narrower slabs of V where there are too few chains for all SMs, which changes no number; and
// pairs of warps that split K where there are too few warps, which changes the order of sums.
ChunkScanShape scan_shape(const Problem& p, const DeviceFacts& facts) {
  ChunkScanShape shape = {4, 1, 1};
  const bool few = scan_grid(p, 4) * 4 < facts.num_sms * 3 && !p.batch_invariant;
  if (few || padded_dim(p) == 256) shape.parts = 2;
  while (shape.groups > 1 &&
         (scan_grid(p, shape.groups) * 4 < facts.num_sms * 3 || p.dim_v <= shape.groups * 8))
    shape.groups /= 2;
  // As many chunks on their way as shared memory holds, with two CTAs an SM where there are so
  // many: up to 5 % over a single one.
  const auto fits = [&](int stages, int64_t bytes) {
    return scan_kernel(p, {shape.groups, shape.parts, stages}).shared_bytes <= bytes;
  };
  const bool one = scan_grid(p, shape.groups) <= facts.num_sms;
  const int64_t most = facts.shared_bytes_block, share = one ? most : most / 2;
  while (shape.stages < kMaxScanStages && fits(shape.stages + 1, shape.stages < 2 ? most : share))
    ++shape.stages;
  return shape;
}

ChunkKernel prepare_kernel_of(const Problem& p) {
  return chunk_prepare_kernel(p.q.type == Type::bf16, padded_dim(p), p.gate == Gate::channel);
}

std::string reject(const Problem& p, const DeviceFacts& facts) {
  if (p.q.type == Type::f32) return "takes bfloat16 and float16, q is float32";
  // A sum of few products does not average fp16's rounding away: 2e-3 is missed at K = 1.
  if (p.q.type == Type::f16 && p.dim_k < 16)
    return format_text("takes float16 with K of 16 and more, q has K = %lld",
                       static_cast<long long>(p.dim_k));
  if (std::string reason = scattered_channels(p); !reason.empty()) return reason;
  if (p.num_tokens >= kLargestGrid) return "counts tokens in 32 bits";
  if (chunk_slots(p) * p.heads_v > kLargestGrid || scan_grid(p, 1) > kLargestGrid)
    return "needs more than 2^31 CTAs for this size";
  const int shared = scan_kernel(p, {4, 2, 1}).shared_bytes;
  if (shared > facts.shared_bytes_block)
    return format_text("needs %d bytes of shared memory a CTA, %s has %lld", shared,
                       facts.name.c_str(), static_cast<long long>(facts.shared_bytes_block));
  return "";
}

void plan(Plan* plan) {
  const Problem& p = plan->problem;
  Ledger ledger;
  Workspace(&ledger, p);
  plan->workspace_bytes = ledger.bytes();
  const ChunkScanShape shape = scan_shape(p, plan->facts);
  plan->config[0] = shape.groups, plan->config[1] = shape.parts, plan->config[2] = shape.stages;
  if (p.varlen()) plan->launches.push_back({"chunk_index_portable", {1, 1, 1}, 1024});
  plan->launches.push_back({"chunk_prepare_portable", {prepare_grid(p), 1, 1}, prepare_threads(p)});
  plan->launches.push_back(
      {"chunk_scan_portable", {scan_grid(p, shape.groups), 1, 1}, shape.threads()});
  const int device = plan->facts.device.index;
  for (const ChunkKernel& kernel :
       {chunk_index_kernel(), prepare_kernel_of(p), scan_kernel(p, shape)})
    prepare_kernel(kernel.address, kernel.shared_bytes, device);
}

ChunkParams params_of(const Plan& plan, const linattn_args& args) {
  const Problem& p = plan.problem;
  Ledger ledger(args.workspace);
  const Workspace workspace(&ledger, p);
  const ChunkScanShape shape = shape_of(plan);
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
  params.qk_vectors =
      p.dim_k % 8 == 0 && rows_aligned(p.q, args.q, p, 8) && rows_aligned(p.k, args.k, p, 8);
  params.v_vectors = p.dim_v % 8 == 0 && rows_aligned(p.v, args.v, p, 8);
  const int64_t lane = padded_dim(p) == 64 ? 2 : 4;
  params.vectors = rows_aligned(p.q, args.q, p, lane) && rows_aligned(p.k, args.k, p, lane) &&
                   (!p.g.present() || rows_aligned(p.g, args.g, p, lane));
  params.o_pairs = p.dim_v % 2 == 0 && rows_aligned(p.o, args.o, p, 2);
  return params;
}

Status run(const Plan& plan, const linattn_args& args, void* stream) {
  const Problem& p = plan.problem;
  const int device = plan.facts.device.index;
  const ChunkScanShape shape = shape_of(plan);
  const ChunkParams params = params_of(plan, args);
  const auto go = [&](const char* name, int64_t grid, int block, const ChunkKernel& kernel) {
    if (grid == 0) return static_cast<Status>(LINATTN_OK);
    return launch({name, grid, block, false, kernel.shared_bytes}, kernel.address, &params, device,
                  stream);
  };
  if (p.varlen())
    LINATTN_RETURN_IF_FAILED(go("chunk_index_portable", 1, 1024, chunk_index_kernel()));
  LINATTN_RETURN_IF_FAILED(
      go("chunk_prepare_portable", prepare_grid(p), prepare_threads(p), prepare_kernel_of(p)));
  return go("chunk_scan_portable", scan_grid(p, shape.groups), shape.threads(),
            scan_kernel(p, shape));
}

}  // namespace

const Implementation chunk_forward{"cuda_portable", LINATTN_DEVICE_CUDA, reject, plan, run};

}  // namespace linattn::cuda
