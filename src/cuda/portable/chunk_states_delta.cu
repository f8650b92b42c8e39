#include "cuda/portable/chunk_states.instances.cuh"

namespace linattn::cuda {

ChunkKernel chunk_states_kernel_delta(int dim, bool channel, int warps) {
  return find_chunk_states<true>(dim, channel, warps);
}

}  // namespace linattn::cuda
