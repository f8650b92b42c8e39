// Backward on CUDA for bf16 inputs: index (varlen), preparation, both scans, gradients, sums.
#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/portable/backward.kernels.h"
#include "cuda/portable/chunk_gradient.kernels.h"
#include "cuda/portable/chunk_gradient.plan.h"

namespace linattn::cuda {
namespace {

bool is_channel(const Problem& p) { return p.gate == Gate::channel; }

ChunkKernel states_kernel(const Problem& p, int warps) {
  const bool delta = p.update == Update::delta, channel = is_channel(p);
  const int dim = chunk_gradient_dim(p);
  return delta ? chunk_states_kernel_delta(dim, channel, warps)
               : chunk_states_kernel_additive(dim, channel, warps);
}

ChunkKernel gradient_kernel(const Problem& p) {
  const bool delta = p.update == Update::delta;
  const int dim = chunk_gradient_dim(p);
  return is_channel(p) ? chunk_gradient_kernel_channel(delta, dim)
                       : chunk_gradient_kernel_token(delta, dim);
}

struct Step {
  const char* name;
  int64_t grid;
  int block;
  ChunkKernel kernel;
  const void* params;
};

// The launches in order; without params for the plan.
template <class F>
void for_steps(const Problem& p, const DeviceFacts& facts, const ChunkGradientParams* params,
               const BackwardParams* sums, F&& f) {
  const ChunkGradientGrids grids = chunk_gradient_grids(p, facts);
  const int warps = chunk_gradient_warps(p, facts), dim = chunk_gradient_dim(p);
  const void* chunk = params == nullptr ? nullptr : &params->chunk;
  const Step steps[] = {
      {"chunk_index_portable", grids.index, 1024, chunk_index_kernel(), chunk},
      {"chunk_gradient_prepare_portable", grids.prepare, chunk_prepare_threads(dim, is_channel(p)),
       chunk_gradient_prepare_kernel(dim, is_channel(p)), chunk},
      {"chunk_states_portable", grids.states, warps * 32, states_kernel(p, warps), params},
      {is_channel(p) ? "chunk_gradient_channel_portable" : "chunk_gradient_token_portable",
       grids.gradient, gradient_threads(dim), gradient_kernel(p), params},
      {"backward_gate_sums_portable",
       grids.gate_sums,
       256,
       {backward_gate_sums_kernel(), 0},
       sums}};
  for (const Step& step : steps)
    if (step.grid > 0) f(step);
}

std::string reject(const Problem& p, const DeviceFacts& facts) {
  if (std::string reason = chunk_gradient_reject(p, facts); !reason.empty()) return reason;
  std::string reason;
  for_steps(p, facts, nullptr, nullptr, [&](const Step& step) {
    if (reason.empty() && step.kernel.shared_bytes > facts.shared_bytes_block)
      reason = format_text("needs %d bytes of shared memory a CTA, %s has %lld",
                           step.kernel.shared_bytes, facts.name.c_str(),
                           static_cast<long long>(facts.shared_bytes_block));
  });
  return reason;
}

void plan(Plan* plan) {
  plan->workspace_bytes = chunk_gradient_workspace(plan->problem);
  for_steps(plan->problem, plan->facts, nullptr, nullptr, [&](const Step& step) {
    plan->launches.push_back({step.name, {step.grid, 1, 1}, step.block, step.kernel.shared_bytes});
    prepare_kernel(step.kernel.address, step.kernel.shared_bytes, plan->facts.device.index);
  });
}

Status run(const Plan& plan, const linattn_args& args, void* stream) {
  const ChunkGradientParams params = chunk_gradient_params(plan.problem, plan.facts, args);
  const BackwardParams sums = chunk_gradient_sums(params);
  Status status = LINATTN_OK;
  for_steps(plan.problem, plan.facts, &params, &sums, [&](const Step& step) {
    if (status == LINATTN_OK)
      status = launch({step.name, step.grid, step.block, false, step.kernel.shared_bytes},
                      step.kernel.address, step.params, plan.facts.device.index, stream);
  });
  return status;
}

}  // namespace

const Implementation backward{"cuda_portable", LINATTN_DEVICE_CUDA, reject, plan, run};

}  // namespace linattn::cuda
