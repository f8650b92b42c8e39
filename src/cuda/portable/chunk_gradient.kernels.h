// Kernel addresses of the chunked backward by table row, so that only the .cu files see the
// kernels.
#pragma once

#include "cuda/portable/chunk.kernels.h"

namespace linattn::cuda {

// K rounded up to 64 or 128.
ChunkKernel chunk_gradient_prepare_kernel(int dim, bool channel);
ChunkKernel chunk_states_kernel_delta(int dim, bool channel, int warps);
ChunkKernel chunk_states_kernel_additive(int dim, bool channel, int warps);
ChunkKernel chunk_gradient_kernel_channel(bool delta, int dim);
ChunkKernel chunk_gradient_kernel_token(bool delta, int dim);

}  // namespace linattn::cuda
