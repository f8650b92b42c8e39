#include "core/log.h"

#include <atomic>
#include <cstdio>
#include <mutex>

#include "core/environment.h"

namespace linattn {
namespace {

void to_stderr(int32_t, const char* message, void*) {
  std::fprintf(stderr, "linattn: %s\n", message);
}

const linattn_log_function default_function = verbose_in_environment() ? to_stderr : nullptr;

std::mutex mutex;
linattn_log_function current = default_function;
void* current_user = nullptr;
std::atomic<bool> listening{default_function != nullptr};

}  // namespace

void set_log(linattn_log_function function, void* user) {
  std::lock_guard lock(mutex);
  current = function != nullptr ? function : default_function;
  current_user = function != nullptr ? user : nullptr;
  listening = current != nullptr;
}

bool logging() { return listening.load(std::memory_order_relaxed); }

void log(LogLevel level, const std::string& message) {
  linattn_log_function function;
  void* user;
  {
    // Called outside the lock, so that a hook may call the library.
    std::lock_guard lock(mutex);
    function = current;
    user = current_user;
  }
  if (function != nullptr) function(static_cast<int32_t>(level), message.c_str(), user);
}

}  // namespace linattn
