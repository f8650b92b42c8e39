// Host stand-in for src/cuda/ptx/tf32.cuh.
#pragma once

#include "../../simt.h"

namespace linattn::cuda::ptx {

inline uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float bits_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float tf32_value(uint32_t x) { return bits_float(x & 0xffffe000u); }

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  simt::exchange(words, 6);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 8; ++k) {
      const uint32_t x = simt::taken(g * 4 + k % 4, e / 2 + k / 4 * 2);
      const uint32_t y = simt::taken((2 * t + e % 2) * 4 + k % 4, 4 + k / 4);
      d[e] += tf32_value(x) * tf32_value(y);
    }
}

}  // namespace linattn::cuda::ptx
