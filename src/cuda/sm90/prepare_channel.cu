#include "cuda/sm90/kernels.h"
#include "cuda/sm90/prepare_channel.cuh"

namespace linattn::cuda::sm90 {
namespace {

template <bool kDelta>
const void* address(bool anchored) {
  return anchored ? reinterpret_cast<const void*>(&chunk_prepare_channel_sm90<kDelta, true>)
                  : reinterpret_cast<const void*>(&chunk_prepare_channel_sm90<kDelta, false>);
}

}  // namespace

Kernel prepare_channel_kernel_of(bool delta, bool anchored) {
  return {delta ? address<true>(anchored) : address<false>(anchored), kPrepareChannelThreads,
          anchored ? kPrepareChannelBytes : kPrepareExactBytes};
}

}  // namespace linattn::cuda::sm90
