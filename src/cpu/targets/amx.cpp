#define LINATTN_TARGET amx
#define LINATTN_TARGET_NAME "amx"
#include "cpu/simd/all.inl"
