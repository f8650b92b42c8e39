// Host stand-in for src/cuda/ptx/shared.cuh.
#pragma once

#include "../../simt.h"

namespace linattn::cuda::ptx {

inline float load_shared(uint32_t address) {
  if (address % 4 != 0 || address + 4 > simt::kSharedBytes) simt::stop("a load of a wrong address");
  return simt::at_shared<float>(address);
}
inline void load_shared(uint32_t address, float& x0, float& x1) {
  if (address % 8 != 0) simt::stop("a load of two numbers is not aligned");
  x0 = load_shared(address), x1 = load_shared(address + 4);
}

}  // namespace linattn::cuda::ptx
