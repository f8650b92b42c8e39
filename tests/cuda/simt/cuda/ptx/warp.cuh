// Host stand-in for src/cuda/ptx/warp.cuh.
#pragma once

#include "../../simt.h"

namespace linattn::cuda::ptx {

inline constexpr unsigned kAllLanes = 0xffffffffu;

inline float shuffle_xor(float x, int mask) {
  simt::exchange(std::bit_cast<uint32_t>(x));
  return std::bit_cast<float>(simt::taken(simt::lane() ^ mask));
}

inline double shuffle_xor(double x, int mask) { return __shfl_xor_sync(kAllLanes, x, mask); }

inline float shuffle(float x, int source_lane) {
  simt::exchange(std::bit_cast<uint32_t>(x));
  return std::bit_cast<float>(simt::taken(source_lane & 31));
}

inline float lowest_magnitude(float x) {
  simt::exchange(std::bit_cast<uint32_t>(std::fabs(x)));
  for (int lane = 0; lane < simt::kLanes; ++lane)
    x = std::fmin(std::fabs(x), std::bit_cast<float>(simt::taken(lane)));
  return x;
}

inline float highest_magnitude(float x) {
  simt::exchange(std::bit_cast<uint32_t>(std::fabs(x)));
  for (int lane = 0; lane < simt::kLanes; ++lane)
    x = std::fmax(std::fabs(x), std::bit_cast<float>(simt::taken(lane)));
  return x;
}

inline int opaque(int x) {
  simt::exchange(std::bit_cast<uint32_t>(x));
  return std::bit_cast<int>(simt::taken(0));
}
inline float opaque(float x) { return x; }

inline uint32_t thread_of_cta() { return threadIdx.x; }

inline void sync_warp() { simt::exchange(0); }
inline void sync_threads(int id, int threads) { simt::barrier(id, threads); }
inline void sync_cta() { simt::barrier(); }

}  // namespace linattn::cuda::ptx
