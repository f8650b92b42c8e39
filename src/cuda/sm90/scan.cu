#include "cuda/sm90/kernels.h"
#include "cuda/sm90/scan.cuh"

namespace linattn::cuda::sm90 {
namespace {

template <bool kBf16>
const void* address(bool delta) {
  return delta ? reinterpret_cast<const void*>(&chunk_scan_sm90<kBf16, true>)
               : reinterpret_cast<const void*>(&chunk_scan_sm90<kBf16, false>);
}

}  // namespace

Kernel scan_kernel_of(bool bf16, bool delta) {
  return {bf16 ? address<true>(delta) : address<false>(delta), Layout::kThreads,
          Layout::kSharedBytes};
}

}  // namespace linattn::cuda::sm90
