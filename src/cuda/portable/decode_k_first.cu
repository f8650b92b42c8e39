#include "cuda/portable/decode.instances.cuh"

namespace linattn::cuda {

const void* decode_kernel_k_first(int variant, int shape) {
  return find_decode_instance<false>(variant, shape, AllDecodePairs{});
}

}  // namespace linattn::cuda
