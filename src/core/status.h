// Status of a call and the calling thread's error text.
#pragma once

#include <cstdint>
#include <string>

#include "linattn/linattn.h"

namespace linattn {

using Status = int32_t;  // LINATTN_OK or the class of error

// Sets the calling thread's error text and returns `code`, so that a check is one line.
[[gnu::format(printf, 2, 3)]] Status fail(Status code, const char* format, ...);
const std::string& last_error();
[[gnu::format(printf, 1, 2)]] std::string format_text(const char* format, ...);

}  // namespace linattn

#define LINATTN_REQUIRE(condition, code, ...)                    \
  do {                                                           \
    if (!(condition)) return ::linattn::fail(code, __VA_ARGS__); \
  } while (0)

#define LINATTN_RETURN_IF_FAILED(call)                                             \
  do {                                                                             \
    if (::linattn::Status status_ = (call); status_ != LINATTN_OK) return status_; \
  } while (0)
