// Kernel addresses, so that only the .cu file sees the kernels.
#pragma once

namespace linattn::cuda {

const void* backward_token_kernel(int channels);  // 4 or 8 of a lane
const void* backward_finish_kernel();
const void* backward_gate_sums_kernel();

}  // namespace linattn::cuda
