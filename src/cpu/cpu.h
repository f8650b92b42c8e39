// The CPU implementation's entries of the ordered lists.
#pragma once

#include "recurrence/implementation.h"

namespace linattn::cpu {

extern const Implementation chunk_forward;
extern const Implementation recurrent_forward;
extern const Implementation backward;

// Instruction set in use: "amx", "avx512", "avx2", "neon", "baseline".
const char* target_name();

}  // namespace linattn::cpu
