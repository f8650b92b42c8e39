// Host stand-in for src/cuda/ptx/wgmma.cuh: products are there at once. B comes through the
// descriptor, of which only what the kernels use is known: 128-byte swizzle.
#pragma once

#include "../../simt.h"
#include "mma.cuh"
#include "tf32.cuh"

namespace linattn::cuda::ptx {

inline void fence_wgmma() {}
inline void commit_wgmma() {}
template <int kPending>
void wait_wgmma() {}
template <int kCount>
void pin(uint32_t (&)[kCount][4]) {}
template <int kCount>
void pin(float (&)[kCount]) {}

// Byte `along` of row `row` of an operand: rows of 128 bytes in groups of eight.
inline uint32_t operand_byte(uint64_t descriptor, int row, int along, bool over_panels) {
  if (descriptor >> 62 != 1) simt::stop("an operand is not swizzled by 128 bytes");
  const auto field = [&](int at) { return static_cast<uint32_t>(descriptor >> at & 0x3fff) << 4; };
  const uint32_t leading = field(16), stride = field(32);
  uint32_t plain =
      field(0) + static_cast<uint32_t>(row / 8) * stride + static_cast<uint32_t>(row % 8) * 128;
  if (over_panels)
    plain += static_cast<uint32_t>(along / 128) * leading + static_cast<uint32_t>(along % 128);
  else
    plain += static_cast<uint32_t>(along);
  return plain ^ ((plain >> 7 & 7) << 4);
}

// d (+)= a b, k = 16, A in registers as mma's. kRowsAreK: rows of shared memory are the k axis.
template <bool kBf16, bool kAccumulate, bool kRowsAreK, int kCount>
void multiply_k16(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b) {
  simt::exchange(a, 4);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  for (int i = 0; i < kCount; ++i) {
    const int column = i / 4 * 8 + 2 * t + i % 2, side = i % 4 / 2;
    float sum = kAccumulate ? d[i] : 0.0f;
    for (int k = 0; k < 16; ++k) {
      const uint32_t at =
          kRowsAreK ? operand_byte(b, k, column * 2, true) : operand_byte(b, column, k * 2, false);
      sum += narrow_element<kBf16>(g * 4 + k % 8 / 2, side + k / 8 * 2, k % 2) *
             narrow_value<kBf16>(simt::at_shared<uint16_t>(at));
    }
    d[i] = sum;
  }
}

template <bool kBf16, bool kAccumulate>
void wgmma_k16(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  multiply_k16<kBf16, kAccumulate, false>(d, a, b);
}
template <bool kBf16, bool kAccumulate>
void wgmma_k16_transposed(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  multiply_k16<kBf16, kAccumulate, true>(d, a, b);
}

template <bool kAccumulate>
void wgmma_k8_tf32(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
  simt::exchange(a, 4);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  for (int i = 0; i < 16; ++i) {
    const int column = i / 4 * 8 + 2 * t + i % 2, side = i % 4 / 2;
    float sum = kAccumulate ? d[i] : 0.0f;
    for (int k = 0; k < 8; ++k)
      sum += tf32_value(simt::taken(g * 4 + k % 4, side + k / 4 * 2)) *
             tf32_value(simt::at_shared<uint32_t>(operand_byte(b, column, k * 4, false)));
    d[i] = sum;
  }
}

}  // namespace linattn::cuda::ptx
