// Host stand-in for src/cuda/ptx/special.cuh.
#pragma once

#include <cmath>

namespace linattn::cuda::ptx {

inline float exp2(float x) { return std::exp2(x); }
inline float reciprocal(float x) { return 1.0f / x; }

}  // namespace linattn::cuda::ptx
