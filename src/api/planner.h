// From an asked problem to a plan: validation, the walk over the list, the reasons.
#pragma once

#include "recurrence/implementation.h"

namespace linattn {

// On LINATTN_UNSUPPORTED the plan still holds every refusal.
Status make_plan(const linattn_problem& asked, linattn_device device, Plan* plan);

// Checks pointers and, on the CPU, offsets and indices before anything is written; then runs.
Status run_plan(const Plan& plan, const linattn_args& args, void* stream);

void set_debug_checks(bool enabled);

}  // namespace linattn
