// The oracle: every legal problem, token by token in fp64. Written to be read; the last entry of
// each CPU list, and what every other implementation is compared with.
#pragma once

#include "recurrence/implementation.h"

namespace linattn::reference {

extern const Implementation chunk_forward;
extern const Implementation recurrent_forward;
extern const Implementation backward;

}  // namespace linattn::reference
