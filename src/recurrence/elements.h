// One element by run-time type: for checks and slow paths.
#pragma once

#include "core/float_types.h"
#include "recurrence/problem.h"

namespace linattn {

inline float load_float(Type type, const void* data, int64_t offset) {
  switch (type) {
    case Type::bf16:
      return to_float(static_cast<const Bf16*>(data)[offset]);
    case Type::f16:
      return to_float(static_cast<const F16*>(data)[offset]);
    default:
      return static_cast<const float*>(data)[offset];
  }
}

}  // namespace linattn
