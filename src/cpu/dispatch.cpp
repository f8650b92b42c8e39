#include <cstring>
#include <initializer_list>

#include "cpu/cpu.h"
#include "cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace linattn::cpu {

#if defined(__x86_64__)
namespace amx {
extern const Kernels table;
}
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

#if defined(__x86_64__)
namespace {
// Tile registers need the processor and, once a process, the kernel's leave.
bool may_use_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAvx512Bf16 = 1u << 5;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0 || (a & kAvx512Bf16) == 0) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
}  // namespace
#endif

const Kernels* kernels_of(const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  static const bool has_amx = has_avx512 && may_use_tiles();
  if (std::strcmp(name, "amx") == 0) return has_amx ? &amx::table : nullptr;
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
  for (const char* name : {"amx", "avx512", "avx2", "neon"})
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
