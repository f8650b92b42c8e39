// Host stand-in for src/cuda/ptx/convert.cuh.
#pragma once

#include "../../simt.h"
#include "core/float_types.h"

namespace linattn::cuda::ptx {

inline void unpack_bf16(uint32_t pair, float& low, float& high) {
  low = std::bit_cast<float>(pair << 16);
  high = std::bit_cast<float>(pair & 0xffff0000u);
}

inline uint32_t pack_bf16(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

inline uint32_t multiply_bf16(uint32_t x, uint32_t y) {
  float x0, x1, y0, y1;
  unpack_bf16(x, x0, x1), unpack_bf16(y, y0, y1);
  return pack_bf16(x0 * y0, x1 * y1);
}

inline void unpack_f16(uint32_t pair, float& low, float& high) {
  low = to_float(F16{static_cast<uint16_t>(pair)});
  high = to_float(F16{static_cast<uint16_t>(pair >> 16)});
}

inline uint32_t pack_f16(float low, float high) {
  return to_f16(low).bits | static_cast<uint32_t>(to_f16(high).bits) << 16;
}

}  // namespace linattn::cuda::ptx
