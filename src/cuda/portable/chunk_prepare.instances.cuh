// Rows of the preparation's table.
#pragma once

#include "cuda/portable/chunk.kernels.h"
#include "cuda/portable/chunk_prepare.cuh"

namespace linattn::cuda {

template <Type kType, int kDim>
ChunkKernel chunk_prepare_row(bool channel) {
  using Channel = chunk::PrepareChannelShared<kType, kDim>;
  using Scalar = chunk::PrepareScalarShared<kType, kDim>;
  static_assert(sizeof(Channel) <= 99 * 1024 && sizeof(Scalar) <= 99 * 1024);
  if (channel)
    return {reinterpret_cast<const void*>(&chunk_prepare_portable<kType, kDim, true>),
            sizeof(Channel)};
  return {reinterpret_cast<const void*>(&chunk_prepare_portable<kType, kDim, false>),
          sizeof(Scalar)};
}

}  // namespace linattn::cuda
