// K of 129 to 256. The state is half of all registers; the few bytes that spill are listed in
// bench/results, and these rows are compiled without the gate on spills.
#include "cuda/portable/chunk_scan.instances.cuh"

namespace linattn::cuda {
namespace {

template <bool kDelta>
ChunkKernel wide(bool bf16, bool channel, int warps) {
  return bf16 ? chunk_scan_by_gate<true, 256, kDelta>(channel, warps)
              : chunk_scan_by_gate<false, 256, kDelta>(channel, warps);
}

}  // namespace

ChunkKernel chunk_scan_kernel_wide(bool delta, bool bf16, bool channel, int warps) {
  return delta ? wide<true>(bf16, channel, warps) : wide<false>(bf16, channel, warps);
}

}  // namespace linattn::cuda
