// chunk_forward on CUDA, on tensor cores: index (varlen), preparation, scan.
#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/portable/chunk_forward.plan.h"

namespace linattn::cuda {
namespace {

ChunkScanShape shape_of(const Plan& plan) {
  return {static_cast<int>(plan.config[0]), static_cast<int>(plan.config[1]),
          static_cast<int>(plan.config[2])};
}

ChunkKernel scan_kernel(const Problem& p, const ChunkScanShape& shape) {
  const bool bf16 = p.q.type == Type::bf16, channel = p.gate == Gate::channel;
  const bool delta = p.update == Update::delta;
  const int dim = chunk_forward_dim(p);
  if (p.q.type == Type::f32) return chunk_scan_kernel_f32(delta, dim, channel, shape);
  if (dim == 256) return chunk_scan_kernel_wide(delta, bf16, channel, shape);
  return delta ? chunk_scan_kernel_delta(bf16, dim, channel, shape)
               : chunk_scan_kernel_additive(bf16, dim, channel, shape);
}

ScanBytes scan_bytes(const Problem& p) {
  return [&p](const ChunkScanShape& shape) { return scan_kernel(p, shape).shared_bytes; };
}

ChunkKernel prepare_kernel_of(const Problem& p) {
  const bool channel = p.gate == Gate::channel;
  const int dim = chunk_forward_dim(p);
  return p.q.type == Type::f32 ? chunk_prepare_kernel_f32(dim, channel)
                               : chunk_prepare_kernel(p.q.type == Type::bf16, dim, channel);
}

std::string reject(const Problem& p, const DeviceFacts& facts) {
  if (std::string reason = chunk_forward_reject(p); !reason.empty()) return reason;
  return chunk_scan_reject(facts, scan_bytes(p));
}

void plan(Plan* plan) {
  const Problem& p = plan->problem;
  plan->workspace_bytes = chunk_forward_workspace(p);
  const ChunkScanShape shape = chunk_scan_shape(p, plan->facts, scan_bytes(p));
  plan->config[0] = shape.groups, plan->config[1] = shape.parts, plan->config[2] = shape.stages;
  if (p.varlen()) plan->launches.push_back({"chunk_index_portable", {1, 1, 1}, 1024});
  plan->launches.push_back({"chunk_prepare_portable",
                            {chunk_prepare_grid(p), 1, 1},
                            chunk_prepare_block(p),
                            prepare_kernel_of(p).shared_bytes});
  plan->launches.push_back({"chunk_scan_portable",
                            {chunk_scan_grid(p, shape.groups), 1, 1},
                            shape.threads(),
                            scan_kernel(p, shape).shared_bytes});
  const int device = plan->facts.device.index;
  for (const ChunkKernel& kernel :
       {chunk_index_kernel(), prepare_kernel_of(p), scan_kernel(p, shape)})
    prepare_kernel(kernel.address, kernel.shared_bytes, device);
}

Status run(const Plan& plan, const linattn_args& args, void* stream) {
  const Problem& p = plan.problem;
  const int device = plan.facts.device.index;
  const ChunkScanShape shape = shape_of(plan);
  const ChunkParams params = chunk_forward_params(p, shape, args);
  const auto go = [&](const char* name, int64_t grid, int block, const ChunkKernel& kernel) {
    if (grid == 0) return static_cast<Status>(LINATTN_OK);
    return launch({name, grid, block, false, kernel.shared_bytes}, kernel.address, &params, device,
                  stream);
  };
  if (p.varlen())
    LINATTN_RETURN_IF_FAILED(go("chunk_index_portable", 1, 1024, chunk_index_kernel()));
  LINATTN_RETURN_IF_FAILED(go("chunk_prepare_portable", chunk_prepare_grid(p),
                              chunk_prepare_block(p), prepare_kernel_of(p)));
  return go("chunk_scan_portable", chunk_scan_grid(p, shape.groups), shape.threads(),
            scan_kernel(p, shape));
}

}  // namespace

const Implementation chunk_forward{"cuda_portable", LINATTN_DEVICE_CUDA, reject, plan, run};

}  // namespace linattn::cuda
