// The table of the backward's scans for one update rule; a file each, because nvcc compiles a file
// on one core.
#pragma once

#include "cuda/portable/chunk_gradient.kernels.h"
#include "cuda/portable/chunk_states.cuh"

namespace linattn::cuda {

template <int kDim, bool kChannel, bool kDelta>
ChunkKernel chunk_states_instance(int warps) {
  using S = chunk::gradients::GradientStage<kDim, kChannel, kDelta>;
  constexpr int kStages = chunk::gradients::kStages<kDim>;
  static_assert(kStages * S::bytes(4) <= 99 * 1024, "sm_86 and newer consumer cards have 99 KB");
  return {reinterpret_cast<const void*>(&chunk_states_portable<kDim, kChannel, kDelta>),
          kStages * S::bytes(warps)};
}

template <int kDim, bool kDelta>
ChunkKernel chunk_states_by_gate(bool channel, int warps) {
  return channel ? chunk_states_instance<kDim, true, kDelta>(warps)
                 : chunk_states_instance<kDim, false, kDelta>(warps);
}

template <bool kDelta>
ChunkKernel find_chunk_states(int dim, bool channel, int warps) {
  return dim == 64 ? chunk_states_by_gate<64, kDelta>(channel, warps)
                   : chunk_states_by_gate<128, kDelta>(channel, warps);
}

}  // namespace linattn::cuda
