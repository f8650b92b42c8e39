// The scan's table for one update rule; a file each, because nvcc compiles a file on one core.
#pragma once

#include "cuda/portable/chunk.kernels.h"
#include "cuda/portable/chunk_scan.cuh"

namespace linattn::cuda {

template <bool kBf16, int kDim, bool kChannel, bool kDelta>
ChunkKernel chunk_scan_instance(int warps) {
  using S = chunk::Stage<kDim, kChannel, kDelta>;
  constexpr int kStages = chunk::kStages<kDim>;
  static_assert(kStages * S::bytes(4) <= 99 * 1024, "sm_86 and newer consumer cards have 99 KB");
  return {reinterpret_cast<const void*>(&chunk_scan_portable<kBf16, kDim, kChannel, kDelta>),
          kStages * S::bytes(warps)};
}

template <bool kBf16, int kDim, bool kDelta>
ChunkKernel chunk_scan_by_gate(bool channel, int warps) {
  return channel ? chunk_scan_instance<kBf16, kDim, true, kDelta>(warps)
                 : chunk_scan_instance<kBf16, kDim, false, kDelta>(warps);
}

template <bool kDelta>
ChunkKernel find_chunk_scan(bool bf16, int dim, bool channel, int warps) {
  if (dim == 64)
    return bf16 ? chunk_scan_by_gate<true, 64, kDelta>(channel, warps)
                : chunk_scan_by_gate<false, 64, kDelta>(channel, warps);
  return bf16 ? chunk_scan_by_gate<true, 128, kDelta>(channel, warps)
              : chunk_scan_by_gate<false, 128, kDelta>(channel, warps);
}

}  // namespace linattn::cuda
