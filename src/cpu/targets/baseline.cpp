#define LINATTN_TARGET baseline
#define LINATTN_TARGET_NAME "baseline"
#include "cpu/simd/all.inl"
