#include "cuda/portable/backward.kernels.h"
#include "cuda/portable/backward_finish.cuh"
#include "cuda/portable/backward_token.cuh"

namespace linattn::cuda {

const void* backward_token_kernel(int channels) {
  return channels == 4 ? reinterpret_cast<const void*>(&backward_token_portable<4>)
                       : reinterpret_cast<const void*>(&backward_token_portable<8>);
}
const void* backward_finish_kernel() {
  return reinterpret_cast<const void*>(&backward_finish_portable<0>);
}
const void* backward_gate_sums_kernel() {
  return reinterpret_cast<const void*>(&backward_gate_sums_portable<0>);
}

}  // namespace linattn::cuda
