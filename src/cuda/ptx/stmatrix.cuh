// Stores of four 8x8 tiles of 16-bit elements, sm_90 and newer.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#warp-level-matrix-instructions-stmatrix
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

// Rows of tile i begin where lanes 8i.. say; each lane holds columns of its tile, not rows.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t shared_address, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(shared_address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

}  // namespace linattn::cuda::ptx
