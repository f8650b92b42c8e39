// fp32 inputs, K up to 128.
#include "cuda/portable/chunk_prepare.instances.cuh"
#include "cuda/portable/chunk_scan.instances.cuh"

namespace linattn::cuda {
namespace {

template <int kDim, bool kDelta>
ChunkKernel scan(bool channel, const ChunkScanShape& shape) {
  return channel ? chunk_scan_instance<Type::f32, kDim, true, kDelta, kF32Parts>(shape)
                 : chunk_scan_instance<Type::f32, kDim, false, kDelta, kF32Parts>(shape);
}

}  // namespace

ChunkKernel chunk_prepare_kernel_f32(int dim, bool channel) {
  return dim == 64 ? chunk_prepare_row<Type::f32, 64>(channel)
                   : chunk_prepare_row<Type::f32, 128>(channel);
}

ChunkKernel chunk_scan_kernel_f32(bool delta, int dim, bool channel, const ChunkScanShape& shape) {
  if (dim == 64) return delta ? scan<64, true>(channel, shape) : scan<64, false>(channel, shape);
  return delta ? scan<128, true>(channel, shape) : scan<128, false>(channel, shape);
}

}  // namespace linattn::cuda
