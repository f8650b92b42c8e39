// Entries of the CUDA lists, and what the planner asks about a GPU.
#pragma once

#include "recurrence/implementation.h"

namespace linattn::cuda {

extern const Implementation chunk_forward_sm90;      // "cuda_sm90", 16-bit inputs, K = V = 128
extern const Implementation chunk_forward;           // "cuda_portable", 16-bit inputs
extern const Implementation chunk_forward_by_token;  // "cuda_portable_by_token", every type
extern const Implementation recurrent_forward;       // "cuda_portable"
extern const Implementation backward;                // "cuda_portable", bf16 inputs
extern const Implementation backward_by_token;       // "cuda_portable_by_token", every problem

// Read once per device, at first use. A machine without driver or GPU gives facts whose
// `unavailable` says so.
DeviceFacts device_facts(int index);

}  // namespace linattn::cuda
