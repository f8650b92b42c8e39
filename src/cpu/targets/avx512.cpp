#define LINATTN_TARGET avx512
#define LINATTN_TARGET_NAME "avx512"
#include "cpu/simd/all.inl"
