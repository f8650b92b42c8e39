// The C++ tests' own few lines: an expression that fails is printed with its place and its values,
// the test goes on, and the last line counts. A test is an executable; non-zero exit is failure.
#pragma once

#include <cstdio>

namespace check {

inline int passed = 0, failed = 0;
constexpr int kShown = 50;

inline bool record(bool ok, const char* file, int line, const char* expression) {
  ++(ok ? passed : failed);
  if (!ok && failed <= kShown) std::printf("%s:%d: failed: %s", file, line, expression);
  return ok;
}

inline int finish() {
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition)                                               \
  do {                                                                 \
    if (!check::record((condition), __FILE__, __LINE__, #condition) && \
        check::failed <= check::kShown)                                \
      std::printf("\n");                                               \
  } while (0)

// CHECK with a message in printf's format, for the values that explain a failure.
#define CHECK_THAT(condition, ...)                                     \
  do {                                                                 \
    if (!check::record((condition), __FILE__, __LINE__, #condition) && \
        check::failed <= check::kShown) {                              \
      std::printf(": ");                                               \
      std::printf(__VA_ARGS__);                                        \
      std::printf("\n");                                               \
    }                                                                  \
  } while (0)
