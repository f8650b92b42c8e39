// Kernel addresses by table row, so that only the .cu files see the kernels. Null where the
// library does not compile the pair (decode.config.h).
#pragma once

namespace linattn::cuda {

const void* decode_kernel_v_first(int variant, int shape);
const void* decode_kernel_k_first(int variant, int shape);

}  // namespace linattn::cuda
