// K of 129 to 256.
#include "cuda/portable/chunk_scan.instances.cuh"

namespace linattn::cuda {
namespace {

template <bool kDelta>
ChunkKernel wide(bool bf16, bool channel, const ChunkScanShape& shape) {
  return bf16 ? chunk_scan_by_gate<Type::bf16, 256, kDelta>(channel, shape)
              : chunk_scan_by_gate<Type::f16, 256, kDelta>(channel, shape);
}

}  // namespace

ChunkKernel chunk_scan_kernel_wide(bool delta, bool bf16, bool channel,
                                   const ChunkScanShape& shape) {
  return delta ? wide<true>(bf16, channel, shape) : wide<false>(bf16, channel, shape);
}

}  // namespace linattn::cuda
