// The host side of the chunked backward, without the CUDA runtime.
#pragma once

#include "cuda/portable/backward.params.h"
#include "cuda/portable/chunk.plan.h"
#include "cuda/portable/chunk_gradient.params.h"
#include "recurrence/implementation.h"

namespace linattn::cuda {

// CTAs of each kernel, in the order of their launches; 0: not launched.
struct ChunkGradientGrids {
  int64_t index, prepare, states, gradient, gate_sums;
};

int chunk_gradient_dim(const Problem& p);  // K rounded up to 64 or 128
GradientRecord chunk_gradient_record(const Problem& p);
// Warps of a scan's CTA.
int chunk_gradient_warps(const Problem& p, const DeviceFacts& facts);
ChunkGradientGrids chunk_gradient_grids(const Problem& p, const DeviceFacts& facts);
std::string chunk_gradient_reject(const Problem& p, const DeviceFacts& facts);
int64_t chunk_gradient_workspace(const Problem& p);
ChunkGradientParams chunk_gradient_params(const Problem& p, const DeviceFacts& facts,
                                          const linattn_args& args);
// Of the kernel that adds up the gate's sums, which both backwards share.
BackwardParams chunk_gradient_sums(const ChunkGradientParams& params);

}  // namespace linattn::cuda
