#include "cuda/tile/tensor_map.h"

#include <cuda_runtime_api.h>

namespace linattn::cuda::tile {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// From the driver that is loaded, so that the library needs none to load itself.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    constexpr unsigned kVersion = 12000;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, kVersion,
                                         cudaEnableDefault, &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      (void)cudaGetLastError();
      return EncodeTiled{};
    }
    return reinterpret_cast<EncodeTiled>(found);
  }();
  return function;
}

}  // namespace

bool make_tensor_map(const MappedTensor& tensor, CUtensorMap* map) {
  const EncodeTiled encode = encode_tiled();
  if (encode == nullptr) return false;
  // An axis of one element has any stride; the map wants a multiple of 16 bytes.
  const auto bytes = [](int64_t size, int64_t stride) {
    return static_cast<cuuint64_t>(size <= 1 ? 16 : stride * 2);
  };
  const cuuint64_t sizes[4] = {
      static_cast<cuuint64_t>(tensor.columns), static_cast<cuuint64_t>(tensor.heads),
      static_cast<cuuint64_t>(tensor.tokens), static_cast<cuuint64_t>(tensor.batch)};
  const cuuint64_t strides[3] = {bytes(tensor.heads, tensor.head_stride),
                                 bytes(tensor.tokens, tensor.token_stride),
                                 bytes(tensor.batch, tensor.batch_stride)};
  const cuuint32_t box[4] = {64, 1, static_cast<cuuint32_t>(tensor.box_tokens), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return encode(
             map, tensor.bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, const_cast<void*>(tensor.data), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace linattn::cuda::tile
