#define LINATTN_TARGET neon
#define LINATTN_TARGET_NAME "neon"
#include "cpu/simd/all.inl"
