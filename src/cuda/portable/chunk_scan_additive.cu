#include "cuda/portable/chunk_scan.instances.cuh"

namespace linattn::cuda {

ChunkKernel chunk_scan_kernel_additive(bool bf16, int dim, bool channel,
                                       const ChunkScanShape& shape) {
  return find_chunk_scan<false>(bf16, dim, channel, shape);
}

}  // namespace linattn::cuda
