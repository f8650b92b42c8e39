#include "cuda/portable/chunk_gradient.instances.cuh"

namespace linattn::cuda {

ChunkKernel chunk_gradient_kernel_token(bool delta, int dim) {
  if (dim == 64)
    return delta ? chunk_gradient_token_row<64, true>() : chunk_gradient_token_row<64, false>();
  return delta ? chunk_gradient_token_row<128, true>() : chunk_gradient_token_row<128, false>();
}

}  // namespace linattn::cuda
