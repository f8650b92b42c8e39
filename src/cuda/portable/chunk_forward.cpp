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

struct Workspace {
  char* records;
  int64_t* chunk_begin;

  Workspace(Ledger* ledger, const Problem& p) {
    records = ledger->take<char>(chunk_slots(p) * p.heads_v * record_of(p).bytes());
    chunk_begin = p.varlen() ? ledger->take<int64_t>(p.num_sequences + 1) : nullptr;
  }
};

int64_t scan_grid(const Problem& p, int warps) {
  return (p.num_sequences + (p.varlen() ? 1 : 0)) * p.heads_v *
         ((p.dim_v + warps * 16 - 1) / (warps * 16));
}

// Narrower slabs of V where there are too few chains for all SMs; the numbers do not change.
int scan_warps(const Problem& p, const DeviceFacts& facts) {
  int warps = 4;
  while (warps > 1 && (scan_grid(p, warps) * 4 < facts.num_sms * 3 || p.dim_v <= warps * 8))
    warps /= 2;
  return warps;
}

ChunkKernel scan_kernel(const Problem& p, int warps) {
  const bool bf16 = p.q.type == Type::bf16, channel = p.gate == Gate::channel;
  const bool delta = p.update == Update::delta;
  const int dim = padded_dim(p);
  if (dim == 256) return chunk_scan_kernel_wide(delta, bf16, channel, warps);
  return delta ? chunk_scan_kernel_delta(bf16, dim, channel, warps)
               : chunk_scan_kernel_additive(bf16, dim, channel, warps);
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
  if (chunk_slots(p) * p.heads_v > kLargestGrid || scan_grid(p, 1) > kLargestGrid)
    return "needs more than 2^31 CTAs for this size";
  const int shared = scan_kernel(p, 4).shared_bytes;
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
  const int warps = scan_warps(p, plan->facts);
  plan->config[0] = warps;
  if (p.varlen()) plan->launches.push_back({"chunk_index_portable", {1, 1, 1}, 1024});
  plan->launches.push_back(
      {"chunk_prepare_portable", {chunk_slots(p) * p.heads_v, 1, 1}, prepare_threads(p)});
  plan->launches.push_back({"chunk_scan_portable", {scan_grid(p, warps), 1, 1}, warps * 32});
  const int device = plan->facts.device.index;
  for (const ChunkKernel& kernel :
       {chunk_index_kernel(), prepare_kernel_of(p), scan_kernel(p, warps)})
    prepare_kernel(kernel.address, kernel.shared_bytes, device);
}

ChunkParams params_of(const Plan& plan, const linattn_args& args) {
  const Problem& p = plan.problem;
  Ledger ledger(args.workspace);
  const Workspace workspace(&ledger, p);
  const int warps = static_cast<int>(plan.config[0]);
  ChunkParams params;
  params.problem = p;
  params.args = args;
  params.records = workspace.records;
  params.chunk_begin = workspace.chunk_begin;
  params.chunks_a_sequence = chunks_a_sequence(p);
  params.record_bytes = record_of(p).bytes();
  params.scale = static_cast<float>(p.scale);
  params.heads_v = FastDivisor(static_cast<uint32_t>(p.heads_v));
  params.group = FastDivisor(static_cast<uint32_t>(p.group()));
  params.slabs = FastDivisor(static_cast<uint32_t>((p.dim_v + warps * 16 - 1) / (warps * 16)));
  params.dim_k = static_cast<int32_t>(p.dim_k);
  params.dim_v = static_cast<int32_t>(p.dim_v);
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
  const int device = plan.facts.device.index, warps = static_cast<int>(plan.config[0]);
  const ChunkParams params = params_of(plan, args);
  const auto go = [&](const char* name, int64_t grid, int block, const ChunkKernel& kernel) {
    if (grid == 0) return static_cast<Status>(LINATTN_OK);
    return launch({name, grid, block, false, kernel.shared_bytes}, kernel.address, &params, device,
                  stream);
  };
  if (p.varlen())
    LINATTN_RETURN_IF_FAILED(go("chunk_index_portable", 1, 1024, chunk_index_kernel()));
  LINATTN_RETURN_IF_FAILED(go("chunk_prepare_portable", chunk_slots(p) * p.heads_v,
                              prepare_threads(p), prepare_kernel_of(p)));
  return go("chunk_scan_portable", scan_grid(p, warps), warps * 32, scan_kernel(p, warps));
}

}  // namespace

const Implementation chunk_forward{"cuda_portable", LINATTN_DEVICE_CUDA, reject, plan, run};

}  // namespace linattn::cuda
