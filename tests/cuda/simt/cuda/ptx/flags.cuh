// Host stand-in for src/cuda/ptx/flags.cuh. CTAs run one after the other, so whoever waits for a
// later one hangs.
#pragma once

#include "../../simt.h"

namespace linattn::cuda::ptx {

inline void count_up(uint32_t* counter) { ++*counter; }

inline uint32_t count_of(const uint32_t* counter) { return *counter; }
inline void pause() { simt::wait_for_memory(); }

inline void wait_for_count(const uint32_t* counter, uint32_t count) {
  while (count_of(counter) < count) pause();
}

inline uint32_t take_places(uint32_t* counter, uint32_t count) {
  const uint32_t before = *counter;
  *counter += count;
  return before;
}

inline void fence_async_proxy_everywhere() {}

}  // namespace linattn::cuda::ptx
