#include "cuda/portable/chunk.kernels.h"
#include "cuda/portable/chunk_prepare.cuh"

namespace linattn::cuda {
namespace {

template <bool kBf16, int kDim>
ChunkKernel row(bool channel) {
  using Channel = chunk::PrepareChannelShared<kDim>;
  using Scalar = chunk::PrepareScalarShared<kDim>;
  static_assert(sizeof(Channel) <= 99 * 1024 && sizeof(Scalar) <= 99 * 1024);
  if (channel)
    return {reinterpret_cast<const void*>(&chunk_prepare_portable<kBf16, kDim, true>),
            sizeof(Channel)};
  return {reinterpret_cast<const void*>(&chunk_prepare_portable<kBf16, kDim, false>),
          sizeof(Scalar)};
}

template <bool kBf16>
ChunkKernel rows(int dim, bool channel) {
  return dim == 64    ? row<kBf16, 64>(channel)
         : dim == 128 ? row<kBf16, 128>(channel)
                      : row<kBf16, 256>(channel);
}

}  // namespace

ChunkKernel chunk_prepare_kernel(bool bf16, int dim, bool channel) {
  return bf16 ? rows<true>(dim, channel) : rows<false>(dim, channel);
}

}  // namespace linattn::cuda
