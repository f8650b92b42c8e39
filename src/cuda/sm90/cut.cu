#include "cuda/sm90/kernels.h"
#include "cuda/sm90/scan.cut.cuh"

namespace linattn::cuda::sm90 {

Kernel cut_kernel_of(bool delta) {
  return {delta ? reinterpret_cast<const void*>(&chunk_cut_sm90<true>)
                : reinterpret_cast<const void*>(&chunk_cut_sm90<false>),
          kCutThreads, 0};
}

}  // namespace linattn::cuda::sm90
