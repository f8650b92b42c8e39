// Rows of the gradients' tables.
#pragma once

#include "cuda/portable/chunk_gradient.kernels.h"
#include "cuda/portable/chunk_gradient_channel.cuh"
#include "cuda/portable/chunk_gradient_token.cuh"

namespace linattn::cuda {

template <int kDim, bool kDelta>
ChunkKernel chunk_gradient_channel_row() {
  using Shared = chunk::gradients::ChannelGradientShared<kDim>;
  static_assert(kDim > 128 || sizeof(Shared) <= 99 * 1024, "consumer cards have 99 KB");
  return {reinterpret_cast<const void*>(&chunk_gradient_channel_portable<kDim, kDelta>),
          sizeof(Shared)};
}

template <int kDim, bool kDelta>
ChunkKernel chunk_gradient_token_row() {
  using Shared = chunk::gradients::TokenGradientShared<kDim>;
  static_assert(kDim > 128 || sizeof(Shared) <= 99 * 1024, "consumer cards have 99 KB");
  return {reinterpret_cast<const void*>(&chunk_gradient_token_portable<kDim, kDelta>),
          sizeof(Shared)};
}

}  // namespace linattn::cuda
