// The scan's table for one update rule; a file each, because nvcc compiles a file on one core.
#pragma once

#include "cuda/portable/chunk.kernels.h"
#include "cuda/portable/chunk_scan.cuh"

namespace linattn::cuda {

template <Type kType, int kDim, bool kChannel, bool kDelta, int kParts>
ChunkKernel chunk_scan_instance(const ChunkScanShape& shape) {
  using S = chunk::Stage<kType, kDim, kChannel, kDelta, kParts>;
  static_assert(S::shared_bytes(4, kDim <= 128 && S::kEach == 2 ? 2 : 1) <= 99 * 1024,
                "sm_86 and newer consumer cards have 99 KB");
  return {
      reinterpret_cast<const void*>(&chunk_scan_portable<kType, kDim, kChannel, kDelta, kParts>),
      S::shared_bytes(shape.groups, shape.stages)};
}

// K of 256 in one warp would be half of all registers.
template <Type kType, int kDim, bool kChannel, bool kDelta>
ChunkKernel chunk_scan_by_parts(const ChunkScanShape& shape) {
  if constexpr (kDim <= 128)
    if (shape.parts == 1) return chunk_scan_instance<kType, kDim, kChannel, kDelta, 1>(shape);
  return chunk_scan_instance<kType, kDim, kChannel, kDelta, 2>(shape);
}

template <Type kType, int kDim, bool kDelta>
ChunkKernel chunk_scan_by_gate(bool channel, const ChunkScanShape& shape) {
  return channel ? chunk_scan_by_parts<kType, kDim, true, kDelta>(shape)
                 : chunk_scan_by_parts<kType, kDim, false, kDelta>(shape);
}

template <bool kDelta>
ChunkKernel find_chunk_scan(bool bf16, int dim, bool channel, const ChunkScanShape& shape) {
  if (dim == 64)
    return bf16 ? chunk_scan_by_gate<Type::bf16, 64, kDelta>(channel, shape)
                : chunk_scan_by_gate<Type::f16, 64, kDelta>(channel, shape);
  return bf16 ? chunk_scan_by_gate<Type::bf16, 128, kDelta>(channel, shape)
              : chunk_scan_by_gate<Type::f16, 128, kDelta>(channel, shape);
}

}  // namespace linattn::cuda
