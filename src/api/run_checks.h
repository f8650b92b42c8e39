// Checks that need the arguments themselves, made before anything is written.
#pragma once

#include "core/status.h"
#include "recurrence/problem.h"

namespace linattn {

Status check_pointers(const Problem& problem, const linattn_args& args);

// Host-readable data: offsets, slots of their own for live rows, and with `gate_range` also that
// given gates hold no NaN and keep the promise of safe_gate.
Status check_device_data(const Problem& problem, const linattn_args& args, bool gate_range);

}  // namespace linattn
