// Host stand-in for src/cuda/ptx/mma.cuh. Matrices cross the warp as the hardware lays them out.
#pragma once

#include "../../simt.h"
#include "core/float_types.h"

namespace linattn::cuda::ptx {

// Each lane reads the row that it addresses, then takes its elements of the four tiles.
inline void read_row(uint32_t address) {
  if (address % 16 != 0 || address + 16 > simt::kSharedBytes) simt::stop("ldmatrix: wrong address");
  uint32_t row[4];
  std::memcpy(row, simt::shared_memory + address, 16);
  simt::exchange(row, 4);
}

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  read_row(address);
  const int lane = simt::lane();
  for (int m = 0; m < 4; ++m) r[m] = simt::taken(m * 8 + lane / 4, lane % 4);
}

inline uint32_t element(int lane, int column) {
  return simt::taken(lane, column / 2) >> (column % 2 * 16) & 0xffffu;
}

inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  read_row(address);
  const int lane = simt::lane();
  for (int m = 0; m < 4; ++m) {
    const int row = m * 8 + lane % 4 * 2;
    r[m] = element(row, lane / 4) | element(row + 1, lane / 4) << 16;
  }
}

inline uint32_t movmatrix_trans(uint32_t x) {
  simt::exchange(x);
  const int lane = simt::lane(), row = lane % 4 * 2, column = lane / 4;
  const auto at = [&](int r) {
    return simt::taken(r * 4 + column / 2) >> (column % 2 * 16) & 0xffffu;
  };
  return at(row) | at(row + 1) << 16;
}

template <bool kBf16>
float narrow_value(uint16_t bits) {
  if constexpr (kBf16)
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  else
    return to_float(F16{bits});
}

template <bool kBf16>
float narrow_element(int lane, int word, int half) {
  return narrow_value<kBf16>(static_cast<uint16_t>(simt::taken(lane, word) >> (half * 16)));
}

template <bool kBf16>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  simt::exchange(words, 6);
  const int lane = simt::lane();
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4, column = lane % 4 * 2 + e % 2;
    float sum = d[e];
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2;
      sum += narrow_element<kBf16>(row * 4 + pair, e / 2 + k / 8 * 2, k % 2) *
             narrow_element<kBf16>(column * 4 + pair, 4 + k / 8, k % 2);
    }
    d[e] = sum;
  }
}

}  // namespace linattn::cuda::ptx
