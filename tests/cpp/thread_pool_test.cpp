#include "core/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "check.h"

using linattn::parallel_for;

namespace {

void every_index_once() {
  for (const int threads : {1, 2, 3, 8}) {
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
      std::atomic<bool> thread_in_range{true};
      parallel_for(count, threads, [&](int64_t index, int thread) {
        seen[static_cast<size_t>(index)]++;
        if (thread < 0 || thread >= threads) thread_in_range = false;
      });
      CHECK(thread_in_range);
      bool once = true;
      for (const auto& times : seen) once = once && times == 1;
      CHECK_THAT(once, "%d threads, %lld indices", threads, static_cast<long long>(count));
    }
  }
}

// Per-thread scratch is the point of the thread argument: no two tasks may hold one at a time.
void a_thread_number_is_held_by_one_task() {
  constexpr int kThreads = 4;
  std::atomic<int> holders[kThreads] = {};
  std::atomic<int> clashes{0};
  parallel_for(400, kThreads, [&](int64_t, int thread) {
    if (holders[thread]++ != 0) clashes++;
    std::this_thread::yield();
    holders[thread]--;
  });
  CHECK(clashes == 0);
}

void work_is_shared() {
  // The first task waits for the second: hangs (and the test times out) if one thread does both.
  std::atomic<bool> second{false};
  const auto start = std::chrono::steady_clock::now();
  bool timed_out = false;
  parallel_for(2, 2, [&](int64_t index, int) {
    if (index == 1) second = true;
    while (index == 0 && !second && !timed_out)
      timed_out = std::chrono::steady_clock::now() - start > std::chrono::seconds(20);
  });
  CHECK(!timed_out);
}

void results_are_visible_after_return() {
  std::vector<int64_t> values(5000);
  for (int64_t round = 1; round <= 50; ++round) {
    parallel_for(static_cast<int64_t>(values.size()), 4,
                 [&](int64_t index, int) { values[static_cast<size_t>(index)] += round; });
  }
  bool right = true;
  for (const int64_t value : values) right = right && value == 50 * 51 / 2;
  CHECK(right);
}

void nested_calls_run_in_place() {
  std::atomic<int> inner{0};
  std::atomic<bool> alone{true};
  parallel_for(8, 3, [&](int64_t, int) {
    const auto outer = std::this_thread::get_id();
    parallel_for(5, 3, [&](int64_t, int thread) {
      inner++;
      if (std::this_thread::get_id() != outer || thread != 0) alone = false;
    });
  });
  CHECK(inner == 40);
  CHECK(alone);
}

void callers_from_many_threads() {
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller)
    callers.emplace_back([&] {
      for (int round = 0; round < 100; ++round)
        parallel_for(20, 3, [&](int64_t index, int) { sum += index; });
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(sum == 6 * 100 * 190);
}

// A server that forks after its first call must not wait for threads that only the parent has.
[[maybe_unused]] void a_forked_child_has_a_pool() {
  parallel_for(4, 3, [](int64_t, int) {});
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends the child with a signal
    std::atomic<int> done{0};
    parallel_for(100, 3, [&](int64_t, int) { done++; });
    _exit(done == 100 ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_THAT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
  std::atomic<int> done{0};
  parallel_for(100, 3, [&](int64_t, int) { done++; });
  CHECK(done == 100);
}

void thread_count_is_settable() {
  const int before = linattn::num_threads();
  CHECK(before >= 1);
  linattn::set_num_threads(3);
  CHECK(linattn::num_threads() == 3);
  linattn::set_num_threads(0);
  CHECK(linattn::num_threads() == before);
}

}  // namespace

int main() {
  every_index_once();
  a_thread_number_is_held_by_one_task();
  work_is_shared();
  results_are_visible_after_return();
  nested_calls_run_in_place();
  callers_from_many_threads();
#if !defined(__SANITIZE_THREAD__)  // which refuses to start threads in a forked child
  a_forked_child_has_a_pool();
#endif
  thread_count_is_settable();
  return check::finish();
}
