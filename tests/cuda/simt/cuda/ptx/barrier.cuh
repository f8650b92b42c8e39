// Host stand-in for src/cuda/ptx/barrier.cuh: an mbarrier is the arrivals it misses and the
// number of its phase.
#pragma once

#include "../../simt.h"

namespace linattn::cuda::ptx {

struct Mbarrier {
  uint16_t asked, missing;
  uint32_t phase;
};
static_assert(sizeof(Mbarrier) == 8);

inline void init_barrier(uint32_t barrier, int arrivals) {
  const auto count = static_cast<uint16_t>(arrivals);
  simt::at_shared<Mbarrier>(barrier) = {count, count, 0};
}

inline void arrive(uint32_t barrier) {
  auto& b = simt::at_shared<Mbarrier>(barrier);
  if (b.missing == 0) simt::stop("more arrivals than the barrier asked for");
  if (--b.missing == 0) b.missing = b.asked, ++b.phase;
}

inline bool try_wait(uint32_t barrier, uint32_t phase) {
  return (simt::at_shared<Mbarrier>(barrier).phase & 1u) != phase;
}

inline void wait(uint32_t barrier, uint32_t phase) {
  while (!try_wait(barrier, phase)) simt::wait_for_memory();
}

inline void fence_barrier_init() {}
inline void fence_async_proxy() {}
inline void sync_named(int id, int threads) { simt::barrier(id, threads); }

template <int kRegisters>
void raise_registers() {}
template <int kRegisters>
void lower_registers() {}

}  // namespace linattn::cuda::ptx
