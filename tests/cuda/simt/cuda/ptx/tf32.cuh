// Host stand-in for src/cuda/ptx/tf32.cuh.
#pragma once

#include <algorithm>

#include "../../simt.h"

namespace linattn::cuda::ptx {

inline uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float bits_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float tf32_value(uint32_t x) { return bits_float(x & 0xffffe000u); }

// Sums are cut off, not rounded: every term at two bits below the last that the largest one keeps
// in fp32, then the sum toward zero, as is reported of the tensor cores of sm_90.
inline float cut_sum(const double* terms, int count) {
  int largest = -1000;
  double plain = 0;
  for (int i = 0; i < count; ++i) {
    plain += terms[i];
    if (terms[i] != 0 && std::isfinite(terms[i])) largest = std::max(largest, std::ilogb(terms[i]));
  }
  if (!std::isfinite(plain) || largest == -1000) return static_cast<float>(plain);
  const double step = std::ldexp(1.0, largest - 25);
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += std::trunc(terms[i] / step) * step;
  const auto near = static_cast<float>(sum);
  return std::fabs(static_cast<double>(near)) > std::fabs(sum) ? std::nextafterf(near, 0.0f) : near;
}

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b0, b1};
  simt::exchange(words, 6);
  const int g = simt::lane() / 4, t = simt::lane() % 4;
  for (int e = 0; e < 4; ++e) {
    double terms[9] = {d[e]};
    for (int k = 0; k < 8; ++k) {
      const uint32_t x = simt::taken(g * 4 + k % 4, e / 2 + k / 4 * 2);
      const uint32_t y = simt::taken((2 * t + e % 2) * 4 + k % 4, 4 + k / 4);
      terms[1 + k] = static_cast<double>(tf32_value(x)) * static_cast<double>(tf32_value(y));
    }
    d[e] = cut_sum(terms, 9);
  }
}

}  // namespace linattn::cuda::ptx
