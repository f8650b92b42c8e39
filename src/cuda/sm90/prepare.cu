#include "cuda/sm90/kernels.h"
#include "cuda/sm90/prepare.cuh"

namespace linattn::cuda::sm90 {
namespace {

template <bool kBf16>
const void* address(bool delta) {
  return delta ? reinterpret_cast<const void*>(&chunk_prepare_sm90<kBf16, true>)
               : reinterpret_cast<const void*>(&chunk_prepare_sm90<kBf16, false>);
}

}  // namespace

Kernel prepare_kernel_of(bool bf16, bool delta, int warps) {
  return {bf16 ? address<true>(delta) : address<false>(delta), warps * 32, prepare_bytes(warps)};
}

}  // namespace linattn::cuda::sm90
