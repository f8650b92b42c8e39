// Tensor maps: what the copy engine needs to know of a tensor in global memory.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace linattn::cuda::tile {

// A 16-bit tensor [batch, tokens, heads, columns] with strides in elements, to be copied in boxes
// of `box_tokens` tokens by 64 columns of one head, swizzled as Tile has it.
struct MappedTensor {
  const void* data;
  bool bf16;
  int64_t batch, tokens, heads, columns;
  int64_t batch_stride, token_stride, head_stride;
  int box_tokens;
};

// False where no map can describe the tensor (rows that do not start at multiples of 16 bytes), or
// the driver is too old to know of maps.
bool make_tensor_map(const MappedTensor& tensor, CUtensorMap* map);

}  // namespace linattn::cuda::tile
