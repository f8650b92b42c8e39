#include "core/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/environment.h"

namespace linattn {
namespace {

int cores_of_process() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

int default_threads() {
  const int asked = threads_in_environment();
  return asked > 0 ? asked : cores_of_process();
}

const int threads_at_load = default_threads();
std::atomic<int> threads_now{threads_at_load};

thread_local bool inside_task = false;

constexpr int kLooks = 500;  // at the workers' progress before going to sleep, 20 us or so

void pause_core() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

class Pool {
 public:
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // False when another caller owns the pool.
  bool try_run(int64_t count, int threads, detail::TaskFunction function, void* context) {
    std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    while (static_cast<int>(workers_.size()) < threads - 1) {
      const int thread = static_cast<int>(workers_.size()) + 1;
      workers_.emplace_back([this, thread] { work(thread); });
    }
    {
      std::lock_guard lock(mutex_);
      function_ = function;
      context_ = context;
      count_ = count;
      threads_ = threads;
      next_.store(0, std::memory_order_relaxed);
      running_ = threads - 1;
      ++epoch_;
    }
    wake_.notify_all();
    drain(0);
    // The others are mostly about to be done, and to be woken takes as long as a short call.
    for (int i = 0; i < kLooks && running_.load(std::memory_order_relaxed) != 0; ++i) pause_core();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    return true;
  }

 private:
  void work(int thread) {
    inside_task = true;
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || (epoch_ != seen && thread < threads_); });
      if (stop_) return;
      seen = epoch_;
      lock.unlock();
      drain(thread);
      lock.lock();
      if (--running_ == 0) done_.notify_one();
    }
  }

  void drain(int thread) {
    for (int64_t index; (index = next_.fetch_add(1, std::memory_order_relaxed)) < count_;)
      function_(context_, index, thread);
  }

  std::mutex owner_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  detail::TaskFunction function_ = nullptr;
  void* context_ = nullptr;
  int64_t count_ = 0;
  int threads_ = 0;
  std::atomic<int> running_{0};  // changes under the mutex
  uint64_t epoch_ = 0;
  bool stop_ = false;
  std::atomic<int64_t> next_{0};
};

// A forked child has the parent's pool without its threads, perhaps mid-run: it gets a new one, and
// the old one is left as it is, since its threads cannot be joined.
std::atomic<Pool*> current_pool{nullptr};

void forget_pool_after_fork() {
  current_pool.store(nullptr);
  inside_task = false;
}

Pool& pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool_after_fork);
  (void)registered;
  Pool* pool = current_pool.load(std::memory_order_acquire);
  if (pool == nullptr) {
    Pool* fresh = new Pool;
    if (current_pool.compare_exchange_strong(pool, fresh, std::memory_order_acq_rel))
      pool = fresh;
    else
      delete fresh;
  }
  return *pool;
}

// Joins the workers when the library is unloaded or the process ends.
struct PoolEnd {
  ~PoolEnd() { delete current_pool.exchange(nullptr); }
} pool_end;

}  // namespace

int num_threads() { return threads_now.load(std::memory_order_relaxed); }

void set_num_threads(int count) {
  threads_now.store(count > 0 ? std::min(count, 1024) : threads_at_load, std::memory_order_relaxed);
}

namespace detail {

void parallel_for(int64_t count, int threads, TaskFunction function, void* context) {
  threads = static_cast<int>(std::min<int64_t>(threads, count));
  if (threads > 1 && !inside_task) {
    inside_task = true;
    const bool done = pool().try_run(count, threads, function, context);
    inside_task = false;
    if (done) return;
  }
  for (int64_t index = 0; index < count; ++index) function(context, index, 0);
}

}  // namespace detail
}  // namespace linattn
