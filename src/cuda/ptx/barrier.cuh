// Barriers of Hopper's pipelines: mbarriers in shared memory, named barriers of some warps of a
// CTA, and the fences between ordinary accesses and those of the tensor cores.
#pragma once

#include <cstdint>

namespace linattn::cuda::ptx {

// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-init
__device__ __forceinline__ void init_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Releases this thread's earlier accesses of shared memory.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-arrive
__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("{.reg .b64 state;\n mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(barrier)
               : "memory");
}

// Whether the phase of parity `phase` is over; may wait for a time that the hardware sets.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-mbarrier-test-wait-try-wait
__device__ __forceinline__ bool try_wait(uint32_t barrier, uint32_t phase) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p;\n"
      " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(phase)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t phase) {
  while (!try_wait(barrier, phase)) {
  }
}

// Makes inits visible before anybody arrives. A barrier of the CTA must follow.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Orders this thread's ordinary accesses of shared memory before later ones of the tensor cores.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-membar-fence
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A barrier of `threads` threads, 1 <= id <= 15; 0 is the whole CTA's.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#parallel-synchronization-and-communication-instructions-bar
__device__ __forceinline__ void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Moves registers between the warpgroups of a CTA; all warps of a warpgroup execute it.
// https://docs.nvidia.com/cuda/parallel-thread-execution/#miscellaneous-instructions-setmaxnreg
template <int kRegisters>
__device__ __forceinline__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace linattn::cuda::ptx
