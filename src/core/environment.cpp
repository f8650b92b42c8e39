#include "core/environment.h"

#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

namespace linattn {
namespace {

constexpr int kMostThreads = 1024;

// Set to nothing is not set.
std::string_view variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? std::string_view() : text;
}

std::string fault() {
  const std::string threads(variable("LINATTN_NUM_THREADS"));
  if (!threads.empty() && threads_in_environment() == 0)
    return format_text("LINATTN_NUM_THREADS is '%s'; allowed: 1 to %d", threads.c_str(),
                       kMostThreads);
  const std::string verbose(variable("LINATTN_VERBOSE"));
  if (!verbose.empty() && !verbose_in_environment())
    return format_text("LINATTN_VERBOSE is '%s'; allowed: dispatch", verbose.c_str());
  return "";
}

const std::string fault_at_load = fault();

}  // namespace

int threads_in_environment() {
  const std::string_view text = variable("LINATTN_NUM_THREADS");
  const char* end = text.data() + text.size();
  int count = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, count);
  const bool whole = error == std::errc() && rest == end;
  return whole && count >= 1 && count <= kMostThreads ? count : 0;
}

bool verbose_in_environment() { return variable("LINATTN_VERBOSE") == "dispatch"; }

Status check_environment() {
  if (fault_at_load.empty()) return LINATTN_OK;
  return fail(LINATTN_INVALID_VALUE, "%s", fault_at_load.c_str());
}

}  // namespace linattn
