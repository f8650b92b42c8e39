// Runs a CUDA kernel on the host: every thread of a CTA is a coroutine on its own stack. An
// exchange in a warp switches to the next lane until all have given their value, a barrier likewise
// until its threads have arrived. One CTA after the other. Enough to test addresses, masks and
// arithmetic without a GPU; and, with the threads in either order and copies as early or as late as
// they may be, most missing barriers.
#pragma once

#include <math.h>
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Index3 {
  unsigned x, y, z;
};
inline Index3 blockIdx, threadIdx, blockDim, gridDim;

inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __umulhi(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
}
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }

namespace simt {

constexpr int kLanes = 32, kMaxThreads = 1024, kMaxWords = 8, kBarriers = 16;
// A thread that waits for memory is asked again this often before the kernel counts as hanging.
constexpr int kPatience = 100000;
constexpr size_t kStack = 128 << 10;

enum class At { running, exchange, barrier, memory, end };

inline bool backwards = false;    // the last thread first
inline bool late_copies = false;  // when they are waited for, not when they are issued

struct Copy {
  char* to;
  const char* from;  // null: zeros
  int group;

  void now() const {
    if (from != nullptr)
      std::memcpy(to, from, 16);
    else
      std::memset(to, 0, 16);
  }
};

struct Cta {
  ucontext_t scheduler{}, thread[kMaxThreads]{};
  std::unique_ptr<char[]> stacks{new char[kMaxThreads * kStack]};  // mapped where they are used
  At at[kMaxThreads] = {};
  uint32_t given[kMaxThreads][kMaxWords] = {}, taken[kMaxThreads][kMaxWords] = {};
  std::vector<Copy> copies[kMaxThreads];
  int groups[kMaxThreads] = {};         // committed
  int barrier[kMaxThreads] = {};        // which one a thread is at
  int barrier_threads[kBarriers] = {};  // how many it waits for
  int running = 0, threads = 0;
  std::function<void()> body;
};
inline Cta* cta = nullptr;

inline void wait_at(At where) {
  Cta& c = *cta;
  const int self = c.running;
  c.at[self] = where;
  swapcontext(&c.thread[self], &c.scheduler);
}

// Every lane of the warp gives some words; when all have, taken() reads any of them.
inline void exchange(const uint32_t* words, int count) {
  std::memcpy(cta->given[cta->running], words, static_cast<size_t>(count) * sizeof(uint32_t));
  wait_at(At::exchange);
}
inline void exchange(uint32_t value) { exchange(&value, 1); }
inline uint32_t taken(int lane, int word = 0) {
  return cta->taken[cta->running / kLanes * kLanes + lane][word];
}
inline int lane() { return cta->running % kLanes; }
// Barrier 0 is the whole CTA's.
inline void barrier(int id = 0, int threads = 0) {
  cta->barrier[cta->running] = id;
  cta->barrier_threads[id] = threads == 0 ? cta->threads : threads;
  wait_at(At::barrier);
}
// Until other threads have written what this one waits for.
inline void wait_for_memory() { wait_at(At::memory); }

inline void thread_main() {
  cta->body();
  wait_at(At::end);
}

[[noreturn]] inline void stop(const char* why) {
  std::printf("the emulated kernel hangs: %s\n", why);
  std::abort();
}

// Whether threads [begin, end) are all at `where`; some there and others elsewhere for good hangs.
inline bool all_at(At where, int begin, int end) {
  for (int i = begin; i < end; ++i)
    if (cta->at[i] != where) return false;
  return true;
}

inline void run_cta(int threads, const std::function<void()>& body) {
  static Cta c;
  cta = &c;
  c.threads = threads;
  c.body = body;
  for (int i = 0; i < threads; ++i) {
    c.at[i] = At::running;
    c.copies[i].clear();
    c.groups[i] = 0;
    getcontext(&c.thread[i]);
    c.thread[i].uc_stack.ss_sp = c.stacks.get() + static_cast<size_t>(i) * kStack;
    c.thread[i].uc_stack.ss_size = kStack;
    c.thread[i].uc_link = nullptr;
    makecontext(&c.thread[i], thread_main, 0);
  }
  int asked = 0;
  while (!all_at(At::end, 0, threads)) {
    for (int turn = 0; turn < threads; ++turn) {
      const int i = backwards ? threads - 1 - turn : turn;
      if (c.at[i] != At::running && c.at[i] != At::memory) continue;
      c.running = i;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      swapcontext(&c.scheduler, &c.thread[i]);
    }
    bool released = all_at(At::end, 0, threads);
    for (int warp = 0; warp < threads; warp += kLanes)
      if (all_at(At::exchange, warp, warp + kLanes)) {
        for (int i = warp; i < warp + kLanes; ++i) {
          std::memcpy(c.taken[i], c.given[i], sizeof(c.taken[i]));
          c.at[i] = At::running;
        }
        released = true;
      }
    for (int id = 0; id < kBarriers; ++id) {
      int arrived = 0;
      for (int i = 0; i < threads; ++i) arrived += c.at[i] == At::barrier && c.barrier[i] == id;
      if (arrived == 0 || arrived != c.barrier_threads[id]) continue;
      for (int i = 0; i < threads; ++i)
        if (c.at[i] == At::barrier && c.barrier[i] == id) c.at[i] = At::running;
      released = true;
    }
    bool asking = false;
    for (int i = 0; i < threads; ++i) asking = asking || c.at[i] == At::memory;
    asked = released ? 0 : asked + 1;
    if (!released && (!asking || asked > kPatience))
      stop("threads wait for others that do not come");
  }
}

// Dynamic shared memory, poisoned before each CTA.
inline constexpr size_t kSharedBytes = 228 << 10;
alignas(1024) inline char shared_memory[kSharedBytes];
// What lies at an address of 32 bits, which counts from the first byte.
template <class T>
T& at_shared(uint32_t address) {
  return *reinterpret_cast<T*>(shared_memory + address);
}

template <class Kernel, class Params>
void launch(Kernel kernel, int64_t grid, int threads, const Params& params) {
  for (int64_t block = 0; block < grid; ++block) {
    blockIdx = {static_cast<unsigned>(block), 0, 0};
    blockDim = {static_cast<unsigned>(threads), 1, 1};
    gridDim = {static_cast<unsigned>(grid), 1, 1};
    std::memset(shared_memory, 0xff, kSharedBytes);
    run_cta(threads, [&] { kernel(params); });
  }
}

}  // namespace simt

// CUDA's own exchanges, of values of whole words.
namespace simt {
template <class T>
T exchanged(T x, int source) {
  uint32_t words[sizeof(T) / 4];
  std::memcpy(words, &x, sizeof(T));
  exchange(words, sizeof(T) / 4);
  for (size_t i = 0; i < sizeof(T) / 4; ++i) words[i] = taken(source, static_cast<int>(i));
  std::memcpy(&x, words, sizeof(T));
  return x;
}
}  // namespace simt

template <class T>
T __shfl_up_sync(unsigned, T x, int distance) {
  const int lane = simt::lane();
  return simt::exchanged(x, lane < distance ? lane : lane - distance);
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int mask) {
  return simt::exchanged(x, simt::lane() ^ mask);
}
inline void __syncthreads() { simt::barrier(); }
inline void __syncwarp() { simt::exchange(0); }
inline unsigned __ballot_sync(unsigned, bool x) {
  simt::exchange(static_cast<uint32_t>(x));
  unsigned all = 0;
  for (int lane = 0; lane < simt::kLanes; ++lane) all |= simt::taken(lane) << lane;
  return all;
}
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
