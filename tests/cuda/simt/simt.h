// Runs a CUDA kernel on the host: every thread of a CTA is a coroutine on its own stack. An
// exchange in a warp switches to the next lane until all have given their value, a barrier likewise
// until the whole CTA has arrived. One CTA after the other. Enough to test addresses, masks and
// arithmetic without a GPU.
#pragma once

#include <math.h>
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
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
inline Index3 blockIdx, threadIdx;

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

constexpr int kLanes = 32, kMaxThreads = 256;
constexpr size_t kStack = 128 << 10;

enum class At { running, exchange, barrier, end };

struct Cta {
  ucontext_t scheduler{}, thread[kMaxThreads]{};
  std::vector<char> stacks = std::vector<char>(kMaxThreads * kStack);
  At at[kMaxThreads] = {};
  uint32_t given[kMaxThreads] = {}, taken[kMaxThreads] = {};
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

// Every lane of the warp gives a value; when all have, taken() reads any of them.
inline void exchange(uint32_t value) {
  cta->given[cta->running] = value;
  wait_at(At::exchange);
}
inline uint32_t taken(int lane) { return cta->taken[cta->running / kLanes * kLanes + lane]; }
inline int lane() { return cta->running % kLanes; }
inline void barrier() { wait_at(At::barrier); }

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
    getcontext(&c.thread[i]);
    c.thread[i].uc_stack.ss_sp = c.stacks.data() + static_cast<size_t>(i) * kStack;
    c.thread[i].uc_stack.ss_size = kStack;
    c.thread[i].uc_link = nullptr;
    makecontext(&c.thread[i], thread_main, 0);
  }
  while (!all_at(At::end, 0, threads)) {
    for (int i = 0; i < threads; ++i) {
      if (c.at[i] != At::running) continue;
      c.running = i;
      threadIdx = {static_cast<unsigned>(i), 0, 0};
      swapcontext(&c.scheduler, &c.thread[i]);
    }
    bool released = all_at(At::end, 0, threads);
    for (int warp = 0; warp < threads; warp += kLanes)
      if (all_at(At::exchange, warp, warp + kLanes)) {
        for (int i = warp; i < warp + kLanes; ++i) {
          c.taken[i] = c.given[i];
          c.at[i] = At::running;
        }
        released = true;
      }
    if (all_at(At::barrier, 0, threads)) {
      for (int i = 0; i < threads; ++i) c.at[i] = At::running;
      released = true;
    }
    if (!released) stop("threads wait for others that do not come");
  }
}

template <class Kernel, class Params>
void launch(Kernel kernel, int64_t grid, int threads, const Params& params) {
  for (int64_t block = 0; block < grid; ++block) {
    blockIdx = {static_cast<unsigned>(block), 0, 0};
    run_cta(threads, [&] { kernel(params); });
  }
}

}  // namespace simt
