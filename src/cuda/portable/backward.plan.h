// The host side of the token-by-token backward, without the CUDA runtime: tests run it on machines
// without CUDA.
#pragma once

#include <string>

#include "cuda/portable/backward.params.h"
#include "recurrence/implementation.h"

namespace linattn::cuda {

// Key channels of a lane: 4, or 8 for K above 128.
int token_channels(const Problem& problem);

struct BackwardGrids {
  int64_t token, finish, gate_sums;  // 0: not launched
};

std::string backward_reject(const Problem& problem, const DeviceFacts& facts);
BackwardGrids backward_grids(const Problem& problem, const DeviceFacts& facts);
int64_t backward_workspace(const Problem& problem, const DeviceFacts& facts);
BackwardParams backward_params(const Problem& problem, const DeviceFacts& facts,
                               const linattn_args& args);

}  // namespace linattn::cuda
