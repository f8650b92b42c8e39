#include "cuda/portable/chunk_scan.instances.cuh"

namespace linattn::cuda {

ChunkKernel chunk_scan_kernel_delta(bool bf16, int dim, bool channel, const ChunkScanShape& shape) {
  return find_chunk_scan<true>(bf16, dim, channel, shape);
}

ChunkKernel chunk_index_kernel() {
  return {reinterpret_cast<const void*>(&chunk_index_portable<0>), 0};
}

}  // namespace linattn::cuda
