#include <cstring>
#include <initializer_list>

#include "cpu/cpu.h"
#include "cpu/kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace linattn::cpu {

#if defined(__x86_64__)
namespace avx512 {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
namespace baseline {
extern const Kernels table;
}
#elif defined(__aarch64__)
namespace neon {
extern const Kernels table;
}
#else
namespace baseline {
extern const Kernels table;
}
#endif

const Kernels* kernels_of(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  if (std::strcmp(name, "avx512") == 0) return has_avx512 ? &avx512::table : nullptr;
  if (std::strcmp(name, "avx2") == 0) return has_avx2 ? &avx2::table : nullptr;
  if (std::strcmp(name, "baseline") == 0) return &baseline::table;
#elif defined(__aarch64__)
  if (std::strcmp(name, "neon") == 0) return &neon::table;
#else
  if (std::strcmp(name, "baseline") == 0) return &baseline::table;
#endif
  return nullptr;
}

namespace {
const Kernels& best() {
  for (const char* name : {"avx512", "avx2", "neon"})
    if (const Kernels* table = kernels_of(name)) return *table;
  return *kernels_of("baseline");
}
const Kernels* chosen = &best();
}  // namespace

const Kernels& kernels() { return *chosen; }
const char* target_name() { return chosen->name; }

void select_kernels(const Kernels& table) { chosen = &table; }

#if defined(__x86_64__)
FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) {
  _mm_setcsr(static_cast<uint32_t>(saved_) | 0x8040u);  // FTZ, DAZ
}
FlushDenormals::~FlushDenormals() { _mm_setcsr(static_cast<uint32_t>(saved_)); }
#elif defined(__aarch64__)
FlushDenormals::FlushDenormals() {
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
  __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | (uint64_t{1} << 24)));
}
FlushDenormals::~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
FlushDenormals::FlushDenormals() : saved_(0) {}
FlushDenormals::~FlushDenormals() { static_cast<void>(saved_); }
#endif

}  // namespace linattn::cpu
