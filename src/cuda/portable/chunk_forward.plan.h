// The host side of the chunk forward, without the CUDA runtime.
#pragma once

#include <functional>

#include "cuda/portable/chunk.kernels.h"
#include "cuda/portable/chunk.params.h"
#include "cuda/portable/chunk.plan.h"
#include "recurrence/implementation.h"

namespace linattn::cuda {

// Shared memory of the problem's scan in a shape.
using ScanBytes = std::function<int64_t(const ChunkScanShape&)>;

int chunk_forward_dim(const Problem& p);  // K rounded up to 64, 128 or 256
int chunk_prepare_block(const Problem& p);
int64_t chunk_prepare_grid(const Problem& p);
int64_t chunk_scan_grid(const Problem& p, int groups);
ChunkScanShape chunk_scan_shape(const Problem& p, const DeviceFacts& facts, const ScanBytes& bytes);
// Of the problem alone, which says whether there is a scan at all; then of its memory.
std::string chunk_forward_reject(const Problem& p);
std::string chunk_scan_reject(const DeviceFacts& facts, const ScanBytes& bytes);
int64_t chunk_forward_workspace(const Problem& p);
ChunkParams chunk_forward_params(const Problem& p, const ChunkScanShape& shape,
                                 const linattn_args& args);

}  // namespace linattn::cuda
