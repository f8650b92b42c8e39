#include "cuda/portable/chunk_gradient.kernels.h"
#include "cuda/portable/chunk_gradient_prepare.cuh"

namespace linattn::cuda {
namespace {

template <int kDim>
ChunkKernel row(bool channel) {
  using Channel = chunk::gradients::PrepareChannelShared<kDim>;
  using Scalar = chunk::gradients::PrepareScalarShared<kDim>;
  static_assert(sizeof(Channel) <= 99 * 1024 && sizeof(Scalar) <= 48 * 1024);
  if (channel)
    return {reinterpret_cast<const void*>(&chunk_gradient_prepare_portable<kBf16, kDim, true>),
            sizeof(Channel)};
  return {reinterpret_cast<const void*>(&chunk_gradient_prepare_portable<kBf16, kDim, false>),
          sizeof(Scalar)};
}

}  // namespace

ChunkKernel chunk_gradient_prepare_kernel(int dim, bool channel) {
  return dim == 64 ? row<64>(channel) : row<128>(channel);
}

}  // namespace linattn::cuda
