// The CPU pool: persistent threads, fixed per process, no allocation in parallel_for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace linattn {

// Threads a new plan may count on. Setting is allowed at any time; plans keep what they saw.
int num_threads();
void set_num_threads(int count);  // 0: default

namespace detail {
using TaskFunction = void (*)(void* context, int64_t index, int thread);
void parallel_for(int64_t count, int threads, TaskFunction function, void* context);
}  // namespace detail

// Calls f(index, thread) for every index in [0, count), thread in [0, threads). Indices are handed
// out one by one in increasing order; the caller is thread 0 and works too. One caller at a time
// owns the pool: a call made while another thread's is running does all its work itself, and a
// nested call does as well. Returns when all is done. f must not throw.
template <class F>
void parallel_for(int64_t count, int threads, F&& f) {
  using Function = std::remove_reference_t<F>;
  detail::parallel_for(
      count, threads,
      [](void* context, int64_t index, int thread) {
        (*static_cast<Function*>(context))(index, thread);
      },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace linattn
