// Backward on CUDA for every problem: token by token, then sums and chain rules.
#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/portable/backward.kernels.h"
#include "cuda/portable/backward.plan.h"

namespace linattn::cuda {
namespace {

constexpr int kThreads = 256;

struct Step {
  const char* name;
  int64_t grid;
  const void* kernel;
};

template <class F>
void for_steps(const Problem& p, const DeviceFacts& facts, F&& f) {
  const BackwardGrids grids = backward_grids(p, facts);
  const Step steps[] = {
      {"backward_token_portable", grids.token, backward_token_kernel(token_channels(p))},
      {"backward_finish_portable", grids.finish, backward_finish_kernel()},
      {"backward_gate_sums_portable", grids.gate_sums, backward_gate_sums_kernel()}};
  for (const Step& step : steps)
    if (step.grid > 0) f(step);
}

void plan(Plan* plan) {
  plan->workspace_bytes = backward_workspace(plan->problem, plan->facts);
  for_steps(plan->problem, plan->facts, [&](const Step& step) {
    plan->launches.push_back({step.name, {step.grid, 1, 1}, kThreads});
    prepare_kernel(step.kernel, 0, plan->facts.device.index);
  });
}

Status run(const Plan& plan, const linattn_args& args, void* stream) {
  const BackwardParams params = backward_params(plan.problem, plan.facts, args);
  Status status = LINATTN_OK;
  for_steps(plan.problem, plan.facts, [&](const Step& step) {
    if (status == LINATTN_OK)
      status = launch({step.name, step.grid, kThreads, false}, step.kernel, &params,
                      plan.facts.device.index, stream);
  });
  return status;
}

}  // namespace

const Implementation backward_by_token{"cuda_portable_by_token", LINATTN_DEVICE_CUDA,
                                       backward_reject, plan, run};

}  // namespace linattn::cuda
