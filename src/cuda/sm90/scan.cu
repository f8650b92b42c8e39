#include "cuda/sm90/kernels.h"
#include "cuda/sm90/scan.cuh"

namespace linattn::cuda::sm90 {
namespace {

template <bool kChannel, bool kBf16>
const void* address(bool delta) {
  if (!delta) return reinterpret_cast<const void*>(&chunk_scan_sm90<kBf16, false, kChannel>);
  // reject() has no fp16 there.
  constexpr bool kType = kBf16 || kChannel;
  return reinterpret_cast<const void*>(&chunk_scan_sm90<kType, true, kChannel>);
}

template <bool kChannel>
Kernel kernel_of(bool bf16, bool delta) {
  using Layout = Layout<kChannel>;
  return {bf16 ? address<kChannel, true>(delta) : address<kChannel, false>(delta), Layout::kThreads,
          Layout::kSharedBytes};
}

}  // namespace

Kernel scan_kernel_of(bool bf16, bool delta, bool channel) {
  return channel ? kernel_of<true>(bf16, delta) : kernel_of<false>(bf16, delta);
}

}  // namespace linattn::cuda::sm90
