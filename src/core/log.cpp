#include "core/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string_view>

namespace linattn {
namespace {

bool verbose_at_load() {
  const char* text = std::getenv("LINATTN_VERBOSE");
  return text != nullptr && std::string_view(text) == "dispatch";
}

void to_stderr(int32_t, const char* message, void*) {
  std::fprintf(stderr, "linattn: %s\n", message);
}

// The environment is read when the library is loaded, never later.
const linattn_log_function default_function = verbose_at_load() ? to_stderr : nullptr;

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
