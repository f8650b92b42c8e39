#define LINATTN_TARGET avx2
#define LINATTN_TARGET_NAME "avx2"
#include "cpu/simd/all.inl"
