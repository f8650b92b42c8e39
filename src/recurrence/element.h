// One element of a tensor by its run-time type, through fp64: for code where speed is no matter.
#pragma once

#include <cstdint>

#include "core/float_types.h"
#include "recurrence/problem.h"

namespace linattn {

inline double load_element(Type type, const void* data, int64_t offset) {
  switch (type) {
    case Type::f32:
      return static_cast<const float*>(data)[offset];
    case Type::bf16:
      return to_float(static_cast<const Bf16*>(data)[offset]);
    case Type::f16:
      return to_float(static_cast<const F16*>(data)[offset]);
    default:
      return 0;
  }
}

// Rounds once, to nearest even. An absent tensor takes nothing.
inline void store_element(Type type, void* data, int64_t offset, double value) {
  switch (type) {
    case Type::f32:
      static_cast<float*>(data)[offset] = from_double<float>(value);
      break;
    case Type::bf16:
      static_cast<Bf16*>(data)[offset] = from_double<Bf16>(value);
      break;
    case Type::f16:
      static_cast<F16*>(data)[offset] = from_double<F16>(value);
      break;
    default:
      break;
  }
}

}  // namespace linattn
