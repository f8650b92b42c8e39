#include "cuda/cuda.h"
#include "cuda/device.h"
#include "cuda/portable/decode.kernels.h"
#include "cuda/portable/decode.plan.h"

namespace linattn::cuda {
namespace {

constexpr const char* kName = "recurrent_forward_portable";

// The PTX in the library is compute_80's, in which the kernel does not wait for the grid in front
// of it; only cards with machine code of their own may let it start early.
bool overlaps_previous(const DeviceFacts& facts) {
  const int major = facts.compute_capability / 10;
  return major == 9 || major == 10 || major == 12;
}

const void* kernel_of(const DecodeChoice& choice) {
  return (choice.variant.v_first ? decode_kernel_v_first : decode_kernel_k_first)(
      choice.variant.number(), choice.shape);
}

std::string reject_by_token(const Problem& p, const DeviceFacts& facts) {
  if (p.intermediate_states.present()) return "does not write intermediate states";
  return decode_reject(p, facts);
}

void plan_decode(Plan* plan) {
  const bool vectors = decode_strides_fit_vectors(plan->problem);
  const DecodeChoice choice = choose_decode(plan->problem, vectors);
  plan->config[0] = vectors;
  plan->launches.push_back({kName, {choice.grid, 1, 1}, kDecodeShapes[choice.shape].threads()});
  prepare_kernel(kernel_of(choice), 0, plan->facts.device.index);
}

Status run_decode(const Plan& plan, const linattn_args& args, void* stream) {
  const bool vectors = plan.config[0] != 0 && decode_pointers_fit_vectors(plan.problem, args);
  const DecodeChoice choice = choose_decode(plan.problem, vectors);
  if (choice.grid == 0) return LINATTN_OK;
  const DecodeParams params = decode_params(plan.problem, args, choice);
  const LaunchShape shape = {kName, choice.grid, kDecodeShapes[choice.shape].threads(),
                             overlaps_previous(plan.facts)};
  return launch(shape, kernel_of(choice), &params, plan.facts.device.index, stream);
}

}  // namespace

const Implementation chunk_forward_by_token{"cuda_portable_by_token", LINATTN_DEVICE_CUDA,
                                            reject_by_token, plan_decode, run_decode};
const Implementation recurrent_forward{"cuda_portable", LINATTN_DEVICE_CUDA, decode_reject,
                                       plan_decode, run_decode};

}  // namespace linattn::cuda
