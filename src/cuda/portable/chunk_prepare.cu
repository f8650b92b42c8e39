#include "cuda/portable/chunk_prepare.instances.cuh"

namespace linattn::cuda {
namespace {

template <Type kType>
ChunkKernel rows(int dim, bool channel) {
  return dim == 64    ? chunk_prepare_row<kType, 64>(channel)
         : dim == 128 ? chunk_prepare_row<kType, 128>(channel)
                      : chunk_prepare_row<kType, 256>(channel);
}

}  // namespace

ChunkKernel chunk_prepare_kernel(bool bf16, int dim, bool channel) {
  return bf16 ? rows<Type::bf16>(dim, channel) : rows<Type::f16>(dim, channel);
}

}  // namespace linattn::cuda
