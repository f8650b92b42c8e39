// Host stand-in for src/cuda/ptx/math.cuh.
#pragma once

#include <cmath>
#include <cstdint>

namespace linattn::cuda::ptx {

inline int64_t mad_wide(int32_t a, int32_t b, int64_t c) { return int64_t{a} * b + c; }
inline float exp2_approx(float x) { return std::exp2(x); }
inline float log2_approx(float x) { return std::log2(x); }
inline float reciprocal_approx(float x) { return 1.0f / x; }
inline float inverse_root_approx(float x) { return 1.0f / std::sqrt(x); }

}  // namespace linattn::cuda::ptx
