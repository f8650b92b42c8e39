// Host stand-in for src/cuda/ptx/stmatrix.cuh.
#pragma once

#include "../../simt.h"

namespace linattn::cuda::ptx {

inline void stmatrix_x4_trans(uint32_t shared_address, const uint32_t (&r)[4]) {
  // Lane l holds, of each tile's transpose, row l/4 and columns 2 (l%4), + 1.
  simt::exchange(shared_address);
  const int lane = simt::lane(), column = lane / 4, row = lane % 4 * 2;
  for (int i = 0; i < 4; ++i)
    for (int e = 0; e < 2; ++e)
      simt::at_shared<uint16_t>(simt::taken(i * 8 + row + e) + static_cast<uint32_t>(column) * 2) =
          static_cast<uint16_t>(r[i] >> (16 * e));
  simt::exchange(0);
}

}  // namespace linattn::cuda::ptx
