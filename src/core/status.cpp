#include "core/status.h"

#include <cstdarg>
#include <cstdio>

namespace linattn {
namespace {

thread_local std::string error_text;

std::string format_list(const char* format, va_list list) {
  va_list copy;
  va_copy(copy, list);
  const int length = std::vsnprintf(nullptr, 0, format, copy);
  va_end(copy);
  std::string text(length < 0 ? 0 : static_cast<size_t>(length), '\0');
  if (length > 0) std::vsnprintf(text.data(), text.size() + 1, format, list);
  return text;
}

}  // namespace

Status fail(Status code, const char* format, ...) {
  va_list list;
  va_start(list, format);
  error_text = format_list(format, list);
  va_end(list);
  return code;
}

const std::string& last_error() { return error_text; }

std::string format_text(const char* format, ...) {
  va_list list;
  va_start(list, format);
  std::string text = format_list(format, list);
  va_end(list);
  return text;
}

}  // namespace linattn
